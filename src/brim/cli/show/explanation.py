"""An explanation in the terminal: cause and evidence first, then time, the ledger, the fix and what is not known."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from brim.cli.show.console import ReportConsole
from brim.explain.difference import StartDifference
from brim.explain.explanation import Explanation
from brim.explain.facts import Evidence
from brim.explain.fixes import Fix
from brim.explain.replay import StepReplay
from brim.units import format_bytes

_SHOWN_TIMELINE = 16


def show_explanation(found: Explanation) -> None:
    console, diagnosis = ReportConsole(), found.diagnosis
    sure = f"  (confidence {diagnosis.confidence:.0%})" if diagnosis.confidence else ""
    console.print(Text(f"cause: {diagnosis.cause}{sure}", style="bold"))
    console.print(Text(f"  {diagnosis.cause.words}"))
    if diagnosis.why != diagnosis.cause.words:
        console.print(Text(f"  here: {diagnosis.why}"))
    _lines(console, "evidence", diagnosis.evidence)
    _lines(console, "timeline", found.timeline[-_SHOWN_TIMELINE:])
    if found.ledger:
        console.print(_ledger(found))
    if found.difference:
        console.print(Text(found.difference))
    _replays(console, found.replays)
    for fix in found.fixes:
        console.print(Text(f"fix: {described_fix(fix)}", style="bold"))
    if found.brim_would:
        console.print(Text(f"with Brim: {found.brim_would}"))
    for line in found.unknown:
        console.print(Text(f"not known: {line}"))


def described_fix(fix: Fix) -> str:
    """A flag with its number, its price and what has checked it."""
    setting = f"{fix.flag}={fix.value}" if fix.flag.isupper() else f"{fix.flag} {fix.value}"
    before, after = fix.kv_tokens_before, fix.kv_tokens_after
    if after is None:
        price = "KV tokens not known"
    elif before is None:
        price = f"{after:,} KV tokens"
    else:
        price = f"{before:,} → {after:,} KV tokens"
    return f"{setting}  ({price}; checked by the {fix.checked_by})"


def show_difference(found: StartDifference) -> None:
    console = ReportConsole()
    console.print(Text(found.words, style="bold"))
    table = Table(box=None, pad_edge=False)
    for name in ("", "before", "after", "change"):
        table.add_column(name, justify="left" if not name else "right")
    for row in found.rows:
        table.add_row(row.name, format_bytes(int(row.before)), format_bytes(int(row.after)), row.signed)
    if found.rows:
        console.print_whole(table)


def _lines(console: ReportConsole, title: str, lines: tuple[Evidence, ...]) -> None:
    if not lines:
        return
    console.print(Text(f"{title}:", style="bold"))
    for one in lines:
        place = f"{one.source}:{one.line}" if one.line else one.source
        when = f" {one.time}" if one.time else ""
        console.print(Text(f"  {place}{when}  {one.text}"), soft_wrap=True)


def _replays(console: ReportConsole, replays: tuple[StepReplay, ...]) -> None:
    if replays:
        console.print(Text("replayed on the meta device, beside weights and pool:", style="bold"))
    for one in replays:
        console.print(Text(f"  {one.words}"), soft_wrap=True)
        if (largest := one.largest) is not None:
            shape = " × ".join(f"{size:,}" for size in largest.shape)
            console.print(Text(f"    largest: {format_bytes(largest.bytes)}, {shape}, {largest.module} ({largest.op})"))


def _ledger(found: Explanation) -> Table:
    table = Table(box=None, pad_edge=False, title="ledger", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("planned", justify="right")
    table.add_column("took", justify="right")
    for row in found.ledger:
        table.add_row(row.name, _size(row.should_bytes), _size(row.took_bytes))
    return table


def _size(size: int | None) -> str:
    return "-" if size is None else format_bytes(size)
