"""Proven fits stored by fingerprint: the next start validates the stored size once instead of searching.

The fingerprint covers everything that the size depends on: model, engine settings, device, driver, versions. The free
memory of the device is stored with it: a stored size is only valid with the same amount free.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brim.errors import InputError
from brim.fit.scaling.given import read_scaling
from brim.records.fit import Attempt, FitItem, FitReport, FitSeconds, Outcome
from brim.records.scaling import MeasuredShape, Residual, ScalingMode, ScalingReport, StepPhase
from brim.sealed import read_entry, write_entry
from brim.units import MIB

_SAME_FREE_BYTES = 64 * MIB  # by which the driver's figure varies between starts


def fingerprint(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


class FitStore:
    """A folder of proven fits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, print_: str) -> Path:
        return self._folder / f"{print_}.json"

    def read(self, print_: str, free_bytes: int) -> FitReport | None:
        """The fit of this fingerprint, if the device has the same amount of free memory."""
        body = read_entry(self._path(print_))
        try:
            if body is None or body["fingerprint"] != print_:
                return None
            report = _report(body["report"])
            same = abs(body["free_before_bytes"] - free_bytes) <= _SAME_FREE_BYTES
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, InputError):  # of another version
            return None
        return report if same and _credible(report) else None

    def write(self, print_: str, report: FitReport, free_before_bytes: int) -> Path:
        path = self._path(print_)
        body = {"fingerprint": print_, "free_before_bytes": free_before_bytes, "report": report.to_json()}
        write_entry(path, body)
        return path


def _credible(report: FitReport) -> bool:
    """A size that its own last attempt has proven."""
    return isinstance(report.kv_tokens, int) and report.attempts[-1:] == (Attempt(report.kv_tokens, Outcome.PROVEN),)


def _report(raw: dict[str, Any]) -> FitReport:
    derived = ("cache_tokens", "cache_bytes")
    kept = {name: value for name, value in raw.items() if name not in derived}
    attempts = (Attempt(one["kv_tokens"], Outcome(one["outcome"]), one["shortfall_bytes"]) for one in raw["attempts"])
    return FitReport(
        **{
            **kept,
            "attempts": tuple(attempts),
            "items": tuple(FitItem(**one) for one in raw["items"]),
            "seconds": FitSeconds(**raw["seconds"]),
            "warnings": tuple(raw["warnings"]),
            "scaling": None if raw["scaling"] is None else _scaling(raw["scaling"]),
        }
    )


def _scaling(raw: dict[str, Any]) -> ScalingReport:
    return ScalingReport(
        mode=ScalingMode(raw["mode"]),
        scaling=read_scaling({"prefill": raw["prefill"], "next_token": raw["next_token"]}),
        residuals=tuple(_residual(one) for one in raw["residuals"]),
        budget_bytes=raw["budget_bytes"],
        derived_margin_percent=raw["derived_margin_percent"],
        given_margin_percent=raw["given_margin_percent"],
        kv_tokens_without_rebuild=raw["kv_tokens_without_rebuild"],
    )


def _residual(raw: dict[str, Any]) -> Residual:
    measured = MeasuredShape(
        StepPhase(raw["phase"]), raw["batch"], raw["tokens"], raw["context"], raw["measured_bytes"], raw["held_back"]
    )
    return Residual(measured, raw["bound_bytes"], raw["before_bytes"])
