"""A fit of a worker for the log, and as a file that the server's metrics are read from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from brim.fit.items import counted
from brim.folders import leases_folder
from brim.records.fit import FitReport
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


def shared_file(instance: str, engine: int) -> Path:
    """Where rank 0 of an engine leaves its report for the front process; both know the server's id."""
    return leases_folder() / f"vllm-{instance}-{engine}.json"


def write_json(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(json.dumps(report, indent=2), encoding="utf-8")
