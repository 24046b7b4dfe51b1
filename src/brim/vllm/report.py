"""A fit of a worker for the log, and as a file that the server's metrics are read from."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from brim.errors import DeviceError
from brim.fit.items import counted
from brim.folders import leases_folder
from brim.records.fit import FitReport
from brim.records.lease import ProcessId
from brim.reserve.codec import process_of
from brim.reserve.processes import descendants, is_running, this_process
from brim.units import format_bytes


def report_lines(report: FitReport, stock_seconds: float) -> list[str]:
    """What was proven, where the device went, and how long it took; so much of that a stock start takes too."""
    source = ("validated again" if report.from_store else "proven") if report.provable else "tried, not proven"
    first = (
        f"{report.kv_tokens:,} KV tokens {source} "
        f"({format_bytes(report.kv_bytes)} of {format_bytes(report.total_bytes)}; "
        f"canary {format_bytes(report.canary_bytes)}, free {format_bytes(report.free_bytes)})"
    )
    items = [
        f"  {item.name:<11} {format_bytes(size):>12}  {item.note}".rstrip() for item, size in counted(report.items)
    ]
    attempts = [
        f"  attempt {number}: {one.kv_tokens:,} tokens, {one.outcome}"
        + (f", shortfall {format_bytes(one.shortfall_bytes)}" if one.shortfall_bytes else "")
        for number, one in enumerate(report.attempts, 1)
    ]
    spent = f"  {report.seconds.total:.1f} s, {stock_seconds:.1f} s of them in vLLM's own warm-up"
    return [first, *items, *attempts, spent, *[f"  note: {warning}" for warning in report.warnings]]


def shared_file(instance: str, engine: int, what: str = "json") -> Path:
    """Where an engine leaves something for the front process; both know the server's id. `json`: the fit of rank 0."""
    return leases_folder() / f"vllm-{instance}-{engine}.{what}"


def signed(report: dict[str, Any]) -> dict[str, Any]:
    """A report with the process that it is of; as it is where processes cannot be told apart (no /proc of its own)."""
    try:
        return {**report, "process": asdict(this_process())}
    except DeviceError:
        return report


def found_file(instance: str, engine: int, fronts: int, what: str = "json") -> Path | None:
    """What an engine left for this front process; None where there is nothing.

    Several front processes have an id each, none of them the worker's; but one process has started all of them.
    """
    own = shared_file(instance, engine, what)
    if own.exists() or fronts == 1:
        return own if own.exists() else None
    try:
        here, me = descendants(os.getppid()), this_process()
    except DeviceError:  # then nothing is signed
        return None
    left = leases_folder().glob(f"vllm-*-{engine}.{what}")
    return next((path for path in left if _is_of(read_report(path) or {}, here, me)), None)


def _is_of(report: dict[str, Any], processes: frozenset[int], me: ProcessId) -> bool:
    try:
        process = process_of(report["process"])
    except (KeyError, TypeError, ValueError):  # unsigned, or of another version
        return False
    return process.pid in processes and is_running(process, me) is True


def read_report(path: Path) -> dict[str, Any] | None:
    """What the worker left; None where there is nothing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(json.dumps(report, indent=2), encoding="utf-8")
