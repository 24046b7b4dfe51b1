"""Leases as a table, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from brim.cli.show.console import ReportConsole
from brim.units import format_bytes

_SIZES = ("promised", "held", "used")


def show_leases(rows: Sequence[Mapping[str, object]], unknown: int = 0) -> None:
    """A row for each lease; those that are there and cannot be read are counted."""
    console = ReportConsole()
    if rows:
        console.print(_table(rows))
    if unknown:
        console.print(f"leases of running processes that cannot be read: {unknown}")
    elif not rows:
        console.print("no leases")


def _table(rows: Sequence[Mapping[str, object]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("device", "pid", "role", "state", *_SIZES, "age"):
        table.add_column(name, justify="left" if name in ("device", "role", "state") else "right")
    for row in rows:
        sizes = (_size(row[f"{name}_bytes"]) for name in _SIZES)
        told = (escape(str(row[name])) for name in ("device", "pid", "role", "state"))
        table.add_row(*told, *sizes, _age(float(str(row["age_seconds"]))))
    return table


def _size(size: object) -> str:
    return "" if size is None else format_bytes(int(str(size)))


def _age(seconds: float) -> str:
    """Two units at most: 42 s, 3 min, 5 h 20 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
