"""What the operator asked of Brim inside vLLM (`Settings`).

In: `--additional-config '{"brim": {…}}'` and the environment of the worker. Out: a frozen record; every wrong value is
named with the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from brim.errors import InvalidRequest
from brim.folders import fits_folder
from brim.records.fit import CANARY_BYTES
from brim.records.lease import Expected, SizeWish
from brim.reserve.sizing import WAIT_SECONDS
from brim.suggest import shown
from brim.units import parse_bytes, parse_seconds

_ALL_THAT_IS_LEFT, _NOBODY = SizeWish(), Expected()
KEY = "brim"  # in vLLM's additional config
SWITCH = "BRIM"  # in the environment: "off" gives stock vLLM
UTILIZATION = "BRIM_UTILIZATION_GIVEN"  # in the environment, by `brim vllm`: "1": --gpu-memory-utilization was written
_OFF = ("off", "0", "false")
_ON = ("", "on", "1", "true")


class RescueMode(StrEnum):
    """Whether steps that run out of memory are run again; it takes Brim's scheduler as well."""

    AUTO = "auto"  # where it was tried
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker is sized. A field of the additional config has the same name, without its unit."""

    enabled: bool = True
    stock_where_refused: bool = False  # "on_refusal": "stop" or "stock"
    canary_bytes: int = CANARY_BYTES
    keep_free_bytes: int | None = None  # None: the default for this device
    memory_fraction: float = 1.0
    utilization_given: bool = False  # the operator wrote gpu_memory_utilization: it is a cap also at its default
    growing_segments: bool = True
    score_in_pieces: bool = True  # prompts, in the V1 runner; False: as stock vLLM, which takes gigabytes for it
    rescue: RescueMode = RescueMode.AUTO
    store: Path | None = None  # None: neither read nor written
    report: Path | None = None  # where rank 0 writes the report as JSON
    budget_bytes: int | None = None  # of the CPU; None: gpu_memory_utilization of the machine, as in stock vLLM
    budget_name: str | None = None  # of a budget on the CPU that other processes share
    share: SizeWish = _ALL_THAT_IS_LEFT
    expected: Expected = _NOBODY
    wait_seconds: float = WAIT_SECONDS


def read_settings(additional_config: Any, environment: Mapping[str, str]) -> WorkerSettings:
    """The settings of a worker."""
    raw = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
    if not isinstance(raw, Mapping):
        raise InvalidRequest(
            f'additional_config.{KEY} is {shown(str(raw))}; write an object, such as {{"canary": "1GiB"}}'
        )
    unknown = sorted(set(raw) - set(_READERS))
    if unknown:
        raise InvalidRequest(
            f"additional_config.{KEY}.{shown(str(unknown[0]))} is no setting; there are {', '.join(_READERS)}"
        )
    wanted: dict[str, Any] = {"store": fits_folder()}
    for name, value in raw.items():
        field, read = _READERS[name]
        wanted[field] = read(value, f"additional_config.{KEY}.{name}")
    if environment.get(UTILIZATION) == "1":
        wanted.setdefault("utilization_given", True)
    if not switched_on(environment):
        wanted["enabled"] = False
    return WorkerSettings(**wanted)


def switched_on(environment: Mapping[str, str]) -> bool:
    """Whether the environment leaves Brim on."""
    said = environment.get(SWITCH, "").strip().lower()
    if said not in (*_OFF, *_ON):
        raise InvalidRequest(
            f"{SWITCH} is '{shown(said)}' in the environment; write {SWITCH}=off for stock vLLM, or unset it"
        )
    return said not in _OFF


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {shown(str(value))}; write true or false")
    return value


def _size(value: Any, name: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {shown(str(value))}; write a size, such as 512MiB")
    return parse_bytes(value, name)


def _fraction(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise InvalidRequest(f"{name} is {shown(str(value))}; it must be above 0 and at most 1")
    return float(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name} is {shown(str(value))}; write it as text")
    return value


def _path(value: Any, name: str) -> Path:
    return Path(_text(value, name))


def _store(value: Any, name: str) -> Path | None:
    """A folder, true (Brim's own folder) or false."""
    if isinstance(value, bool):
        return fits_folder() if value else None
    return _path(value, name)


def _refusal(value: Any, name: str) -> bool:
    if value not in ("stop", "stock"):
        raise InvalidRequest(f"{name} is {shown(str(value))}; write stop or stock")
    return bool(value == "stock")


def _rescue(value: Any, name: str) -> RescueMode:
    if value not in tuple(RescueMode):
        raise InvalidRequest(f"{name} is {shown(str(value))}; write auto, on or off")
    return RescueMode(value)


def _share(value: Any, name: str) -> SizeWish:
    if isinstance(value, str):
        return SizeWish(bytes=parse_bytes(value, name))
    return SizeWish(fraction=_fraction(value, name))


def _expected(value: Any, name: str) -> Expected:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Expected(count=value)
    if isinstance(value, list) and all(isinstance(role, str) and role for role in value):
        return Expected(roles=tuple(value))
    raise InvalidRequest(f'{name} is {shown(str(value))}; write how many, or their roles: ["embedder"]')


def _seconds(value: Any, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    return parse_seconds(_text(value, name), name)


_READERS: dict[str, tuple[str, Any]] = {
    "enabled": ("enabled", _flag),
    "on_refusal": ("stock_where_refused", _refusal),
    "canary": ("canary_bytes", _size),
    "keep_free": ("keep_free_bytes", _size),
    "memory_fraction": ("memory_fraction", _fraction),
    "utilization_given": ("utilization_given", _flag),
    "growing_segments": ("growing_segments", _flag),
    "score_in_pieces": ("score_in_pieces", _flag),
    "rescue": ("rescue", _rescue),
    "store": ("store", _store),
    "report": ("report", _path),
    "budget": ("budget_bytes", _size),
    "budget_name": ("budget_name", _text),
    "share": ("share", _share),
    "expect_neighbours": ("expected", _expected),
    "wait_neighbours": ("wait_seconds", _seconds),
}
