"""What an operator sets of memory scaling: coefficients (mode manual) and the safety margin, checked at start.

Coefficients are a JSON object with `prefill` and `next_token`, each with the terms of `Coefficients` that are not 0:

    {"prefill": {"bytes_per_unit": 119336}, "next_token": {"constant_bytes": 4e6, "bytes_per_unit": 6.8e6}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from brim.errors import InvalidRequest
from brim.records.scaling import Coefficients, Law, Scaling, ScalingMode
from brim.suggest import shown

_PHASES = ("prefill", "next_token")
_MOST = 1e18  # bytes: more than any device has
_TERMS = tuple(name for name in Coefficients.__slots__ if name != "slice_units")
_MORE = (
    "slice_units",
    "allowance_bytes",
    "allowance",
    "least_units",
)  # of a law in a report, which may be given as it is


def check_margin(percent: float | None) -> float | None:
    """A safety margin, in percent of the budget."""
    if percent is None:
        return None
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent < 100:
        raise InvalidRequest(f"safety_margin is {percent!r}; it must be a percentage from 0 to below 100")
    return float(percent)


def check_mode(mode: str) -> ScalingMode:
    try:
        return ScalingMode(mode)
    except ValueError:
        known = ", ".join(ScalingMode)
        raise InvalidRequest(f"scaling is {mode!r}; it must be one of {known}") from None


def check_given(mode: ScalingMode, coefficients: Scaling | None) -> None:
    """Coefficients belong to mode manual, and to no other."""
    if mode is ScalingMode.MANUAL and coefficients is None:
        raise InvalidRequest("scaling is manual without coefficients; give --scaling-coefficients FILE or JSON")
    if mode is not ScalingMode.MANUAL and coefficients is not None:
        raise InvalidRequest(f"scaling coefficients are given and scaling is {mode}; use --scaling manual")


def parse_scaling(text: str) -> Scaling:
    """Laws from JSON."""
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"scaling coefficients are not JSON ({error}); write "
            '{"prefill": {"bytes_per_unit": 119336}, "next_token": {"bytes_per_unit": 6.8e6}}'
        ) from None
    return read_scaling(raw)


def read_scaling(raw: Any) -> Scaling:
    """Laws from parsed JSON. Every wrong value names its field."""
    if not isinstance(raw, Mapping) or set(raw) != set(_PHASES):
        raise InvalidRequest("scaling coefficients: an object with prefill and next_token, and nothing else, is needed")
    return Scaling(*(_law(raw[phase], phase) for phase in _PHASES))


def _law(raw: Any, phase: str) -> Law:
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"scaling coefficients: {phase} is {raw!r}; it must be an object of coefficients")
    unknown = set(raw) - {*_TERMS, *_MORE}
    if unknown:
        name = sorted(map(str, unknown))[0]
        raise InvalidRequest(f"scaling coefficients: {phase}.{name} is not known; known are {', '.join(_TERMS)}")
    terms = {name: _not_negative(raw.get(name, 0.0), f"{phase}.{name}") for name in _TERMS}
    if not any(terms.values()):
        raise InvalidRequest(f"scaling coefficients: all of {phase} are 0; give at least {phase}.bytes_per_unit")
    return Law(
        Coefficients(**terms, slice_units=_count(raw.get("slice_units"), f"{phase}.slice_units")),
        allowance_bytes=_not_negative(raw.get("allowance_bytes", 0.0), f"{phase}.allowance_bytes"),
        allowance=_not_negative(raw.get("allowance", 0.0), f"{phase}.allowance"),
        least_units=_count(raw.get("least_units", 1), f"{phase}.least_units") or 1,
    )


def _not_negative(value: Any, field: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _MOST:
        raise InvalidRequest(
            f"scaling coefficients: {field} is {shown(repr(value))}; it must be a number from 0 to {_MOST:.0e}"
        )
    return float(value)


def _count(value: Any, field: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequest(f"scaling coefficients: {field} is {value!r}; it must be an integer of at least 1")
    return value
