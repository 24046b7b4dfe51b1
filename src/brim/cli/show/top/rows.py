"""Rows and words that the parts of `brim top` share."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from brim.units import format_bytes

_LEFT = ("request", "role", "state", "server", "process")


def figures_table(rows: Sequence[tuple[str, Text]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, text in rows:
        table.add_row(Text(name, style="dim"), text)
    return table


def plain_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    return table


def size_text(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


def seconds_text(seconds: float | None) -> str:
    """42 s, 3 min, 5 h."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{round(minutes / 60)} h"


def delay_text(seconds: float) -> str:
    """0.8 ms, 41 ms, 1.2 s."""
    if seconds < 0.01:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def delays_text(first: tuple[float, float] | None, between: tuple[float, float] | None, window: str) -> str:
    """(p50, p99) of the time to the first token and between tokens; empty where neither is known."""
    told = [
        f"{what} {delay_text(p50)} (p99 {delay_text(p99)})"
        for what, (p50, p99) in (("first token", first or (0, 0)), ("between tokens", between or (0, 0)))
        if (p50, p99) != (0, 0)
    ]
    return f"{', '.join(told)}, {window}" if told else ""
