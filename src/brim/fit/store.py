"""Proven fits stored by fingerprint: the next start validates the stored size once instead of searching.

The fingerprint covers everything that the size depends on: model, engine settings, device, driver, versions. The free
memory of the device is stored with it: a stored size is only valid with the same amount free. Where a fit of the same
model on the same device is stored and cannot be used, `StoredFit.unused` says why.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brim.errors import InputError
from brim.fit.scaling.given import read_scaling
from brim.records.fit import Attempt, AttemptOutcome, FitItem, FitReport, FitSeconds
from brim.records.scaling import MeasuredShape, Residual, ScalingMode, ScalingReport, StepPhase
from brim.sealed import read_entry, write_entry
from brim.units import MIB, format_bytes

_SAME_FREE_BYTES = 64 * MIB  # by which the driver's figure varies between starts
_SAME_START = ("engine", "model", "device", "rank")  # parts without which two starts have nothing in common
_MOST_COMPARED = 64  # entries


def fingerprint(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class StoredFit:
    """What a store has for a start, and a place for what this start finds."""

    store: FitStore | None
    parts: Mapping[str, Any]  # everything that the size depends on
    free_bytes: int  # before anything is built
    report: FitReport | None = None
    unused: str = ""  # why a fit that is stored is not used

    def kept(self, report: FitReport) -> FitReport:
        """The report of this start, stored unless it comes from there; a warning where that is not possible."""
        if self.store is None or report.from_store:
            return report
        unused = self.unused if self.report is None else f"its {self.report.kv_tokens:,} tokens were not proven again"
        report = replace(report, stored_unused=unused)
        try:
            self.store.write(self.parts, report, self.free_bytes)
        except OSError as error:
            warning = f"the fit could not be stored in {self.store.folder}: {error}"
            return replace(report, warnings=(*report.warnings, warning))
        return report


class FitStore:
    """A folder of proven fits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, parts: Mapping[str, Any], free_bytes: int) -> StoredFit:
        """The fit of exactly these parts, if the device has the same amount of free memory."""
        print_ = fingerprint(parts)
        body = read_entry(self._path(print_))
        try:
            if body is None or body["fingerprint"] != print_:
                return StoredFit(self, parts, free_bytes, unused=self._changed(parts))
            report = _report(body["report"])
            before = body["free_before_bytes"]
            same = abs(before - free_bytes) <= _SAME_FREE_BYTES
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, InputError):  # of another version
            return StoredFit(self, parts, free_bytes)
        if not _credible(report):
            return StoredFit(self, parts, free_bytes)
        if not same:
            unused = f"{format_bytes(before)} were free at that start, and {format_bytes(free_bytes)} are now"
            return StoredFit(self, parts, free_bytes, unused=unused)
        return StoredFit(self, parts, free_bytes, report)

    def write(self, parts: Mapping[str, Any], report: FitReport, free_before_bytes: int) -> Path:
        print_ = fingerprint(parts)
        body = {
            "fingerprint": print_,
            "parts": _digests(parts),
            "free_before_bytes": free_before_bytes,
            "report": report.to_json(),
        }
        write_entry(self._path(print_), body)
        return self._path(print_)

    def _path(self, print_: str) -> Path:
        return self.folder / f"{print_}.json"

    def _changed(self, parts: Mapping[str, Any]) -> str:
        """What is not as it was at the nearest start of the same model on the same device; empty: there was none."""
        now = _digests(parts)
        starts = (then for then in self._starts() if all(then.get(name) == now.get(name) for name in _SAME_START))
        changes = [sorted(name for name in then.keys() | now if then.get(name) != now.get(name)) for then in starts]
        nearest = min(changes, key=len, default=[])
        return f"not as at the stored start: {', '.join(nearest)}" if nearest else ""

    def _starts(self) -> Iterator[dict[str, str]]:
        """Digests of the parts of the newest entries."""
        try:
            files = sorted(self.folder.glob("*.json"), key=_written_at, reverse=True)
        except OSError:  # no folder that can be read
            return
        for path in files[:_MOST_COMPARED]:
            found = (read_entry(path) or {}).get("parts")
            if isinstance(found, dict):
                yield found


def find_stored(folder: Path | None, parts: Mapping[str, Any], free_bytes: int) -> StoredFit:
    """What a store has; nothing, and nothing is stored, where there is no folder."""
    return StoredFit(None, parts, free_bytes) if folder is None else FitStore(folder).find(parts, free_bytes)


def _digests(parts: Mapping[str, Any]) -> dict[str, str]:
    return {name: fingerprint({name: value})[:8] for name, value in parts.items()}


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process has replaced it
        return 0.0


def _credible(report: FitReport) -> bool:
    """A size that its own last attempt has proven."""
    return isinstance(report.kv_tokens, int) and report.attempts[-1:] == (
        Attempt(report.kv_tokens, AttemptOutcome.PROVEN),
    )


def _report(raw: dict[str, Any]) -> FitReport:
    derived = ("cache_tokens", "cache_bytes")
    kept = {name: value for name, value in raw.items() if name not in derived}
    attempts = (
        Attempt(one["kv_tokens"], AttemptOutcome(one["outcome"]), one["shortfall_bytes"]) for one in raw["attempts"]
    )
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
