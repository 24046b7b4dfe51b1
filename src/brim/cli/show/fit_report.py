"""A fit as a table and a bar, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from brim.cli.show.bars import ledger_mark, memory_bar
from brim.cli.show.console import ReportConsole
from brim.cli.show.palette import item_colour, item_keys
from brim.fit.items import counted
from brim.records.fit import FitItem, FitReport, FitSeconds
from brim.records.scaling import ScalingReport
from brim.units import format_bytes

if TYPE_CHECKING:
    from rich.text import Text

_WIDEST_BAR = 120


def show_fit(model: str, report: FitReport) -> None:
    """What was proven, where the device went, and how far the predictions were off."""
    console = ReportConsole()
    source = ("validated again" if report.from_store else "proven") if report.provable else "tried, not proven"
    size = f"{report.kv_tokens:,} KV tokens {source}[/] ({format_bytes(report.kv_bytes)}"
    if report.batch_tokens is not None:
        batches = next((item.measured_bytes or 0 for item in report.items if item.name == "activation"), 0)
        size = f"batches of {report.batch_tokens:,} tokens {source}[/] ({format_bytes(batches)}"
    console.print(f"\n[bold]{escape(model)}[/]: [bold green]{size} of {format_bytes(report.total_bytes)})")
    console.print(_use(report))
    if report.items:
        console.print(_bar(report, console.width))
        console.print(_items(report))
    if report.scaling is not None:
        console.print(_scaling(report.scaling, report.kv_tokens))
    for number, attempt in enumerate(report.attempts, 1):
        short = f", shortfall {format_bytes(attempt.shortfall_bytes)}" if attempt.shortfall_bytes else ""
        console.print(f"attempt {number}: {attempt.kv_tokens:,} tokens, {attempt.outcome}{short}")
    phases = (name for name in FitSeconds.__slots__ if name != "total")
    spent = ", ".join(f"{name} {getattr(report.seconds, name):.1f} s" for name in phases)
    console.print(f"{report.seconds.total:.1f} s: {spent}")
    if report.stored_unused:
        console.print(f"the stored fit was not used: {escape(report.stored_unused)}")
    for warning in report.warnings:
        console.print(f"[yellow]note:[/] {escape(warning)}")
    console.print()


def _use(report: FitReport) -> str:
    """How much of the KV cache running requests need, and how much is prefix cache."""
    if report.batch_tokens is not None:
        by = "by memory" if report.limited_by == "memory" else "by --batch-tokens and --max-seqs, not by memory"
        return f"no KV cache: inputs are computed in batches, bounded {by}"
    if report.limited_by == "requests":
        return (
            "set by the requests that may run, not by memory: at full length they need no more "
            "(--max-seqs and --max-len allow more)"
        )
    if not report.cache_tokens:
        return "running requests may need all of it"
    return (
        f"needed by running requests at full length: {report.needed_tokens:,} tokens "
        f"({format_bytes(report.needed_bytes)}); prefix cache: {report.cache_tokens:,} tokens "
        f"({format_bytes(report.cache_bytes)})"
    )


def _scaling(scaling: ScalingReport, kv_tokens: int) -> str:
    """How much a batch may weigh, by which margin, and how well the laws of a step's memory hold."""
    largest = max(scaling.residuals, key=lambda one: one.measured.bytes)
    under = sum(one.bound_bytes < one.measured.bytes for one in scaling.residuals)
    lines = f"scaling ({scaling.mode}): a batch may weigh {format_bytes(scaling.limit_bytes)}; {_margin(scaling)}"
    lines += f"\n{len(scaling.residuals)} steps measured, {under or 'none'} above the bound; "
    lines += f"the bound of the largest is {largest.error:+.1%} off"
    alone = scaling.kv_tokens_without_rebuild
    if alone is not None:
        lines += f"; sized by the laws alone: {alone:,} KV tokens ({alone / kv_tokens - 1:+.2%})"
    return lines


def _margin(scaling: ScalingReport) -> str:
    derived = f"{scaling.derived_margin_percent:.2g} %"
    if scaling.given_margin_percent is None:
        return f"the safety margin is {derived}, from the residuals"
    return f"the safety margin given is {scaling.given_margin_percent:g} %; the residuals say it should be {derived}"


def _bar(report: FitReport, width: int) -> Text:
    items = [(item.name, size, item_colour(item.name)) for item, size in counted(report.items)]
    return memory_bar(items, report.total_bytes, min(width, _WIDEST_BAR))


def _items(report: FitReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("item")
    for name in ("predicted", "measured", "error"):
        table.add_column(name, justify="right")
    table.add_column("")
    keys = item_keys([item.name for item in report.items])
    for item in report.items:
        mark = ledger_mark(keys[item.name], item_colour(item.name)).append(f" {item.name}", style="default")
        table.add_row(mark, _size(item.predicted_bytes), _size(item.measured_bytes), _error(item), item.note)
    return table


def _size(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


def _error(item: FitItem) -> str:
    return "" if item.error is None else f"{item.error:+.2%}"
