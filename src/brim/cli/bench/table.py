"""The report of a run as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brim.bench.records import Ending, MemoryPoint
from brim.cli.show.console import ReportConsole
from brim.units import format_bytes

if TYPE_CHECKING:
    from brim.bench.report import Latency, Report


def show(report: Report) -> None:
    """Print it."""
    from rich.table import Table

    console = ReportConsole()
    console.print(f"[bold]{report.model or 'the model'}[/bold] at {report.server}: {report.load}")
    for line in summary(report):
        console.print(line, markup=False, soft_wrap=True)
    table = Table("", "p50", "p90", "p99", "mean", "most", box=None, pad_edge=False, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, found in latencies(report):
        if found is not None:
            table.add_row(name, *(_time(one) for one in (found.p50, found.p90, found.p99, found.mean, found.most)))
    console.print(table)


def latencies(report: Report) -> list[tuple[str, Latency | None]]:
    return [
        ("first token", report.ttft),
        ("between tokens", report.inter_token),
        ("whole answer", report.end_to_end),
    ]


def summary(report: Report) -> list[str]:
    """All but the latencies, in a few lines."""
    answered, seconds = len(report.answered), report.seconds
    prompt = sum(one.prompt_tokens for one in report.outcomes)
    lines = [
        f"{answered:,} of {len(report.outcomes):,} requests were answered in {seconds:,.1f} s: "
        f"{answered / seconds:,.2f} a second",
        f"{report.answer_tokens:,} tokens of answers, {report.tokens_per_second:,.1f} a second; {prompt:,} of prompts",
    ]
    if (left := len(report.ended(Ending.LEFT))) > 0:
        lines.append(f"{left:,} clients hung up, as they were to")
    if (good := report.good) is not None:
        lines.append(f"goodput: {good:,} answers kept all objectives, {good / seconds:,.2f} a second")
    for kind, times in report.errors.items():
        said = next(one.said for one in report.outcomes if one.error == kind)
        lines.append(f"{times:,} × {kind}: {said}"[:200])
    if report.memory:
        lines.append(_memory(report.memory))
    return lines


def _memory(points: tuple[MemoryPoint, ...]) -> str:
    first, last = points[0], points[-1]
    held = max(point.kv_held for point in points)
    found = f"memory: at most {held:,} of {last.kv_blocks:,} KV blocks held ({held / max(1, last.kv_blocks):.0%})"
    found += f", {last.preemptions - first.preemptions:,} preemptions, {last.rescues - first.rescues:,} rescues"
    if last.device_used_bytes is not None:
        found += f", {format_bytes(last.device_used_bytes)} of the device used"
    return found


def _time(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"
