"""This machine for a terminal: each GPU as a bar and a table of who holds what of it; budgets; recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from brim.cli.show.palette import BLUE, GREEN, GREY
from brim.cli.show.top.rows import plain_table, seconds_text, size_text
from brim.monitor.engines import printable
from brim.monitor.machine import DeviceReading, MachineReading, MemoryHolder
from brim.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_ROWS = 12  # of a device


def machine_view(machine: MachineReading, width: int) -> list[RenderableType]:
    found: list[RenderableType] = []
    if machine.problem:
        found += [Text(f"no GPU: {machine.problem}", style="dim")]
    for device in (*machine.gpus, *machine.budgets):
        found += [Text(), _title(device), *_bar(device, width), *_holders(device)]
    if not machine.gpus and not machine.budgets:
        free = f"; {format_bytes(machine.host_free_bytes)} of host memory free" if machine.host_free_bytes else ""
        found.append(Text(f"no leases{free}", style="dim"))
    found += [Text(f"note: {printable(note, 300)}", style="yellow") for note in machine.notes[:4]]
    return [*found, *_recordings(machine)]


def _title(device: DeviceReading) -> Text:
    number = "" if device.number is None else f"GPU {device.number}  "
    line = Text().append(f"{number}{printable(device.name)}", style="bold")
    if device.free_bytes is None:
        return line.append(f"  budget of {format_bytes(device.total_bytes)}")
    return line.append(f"  {format_bytes(device.free_bytes)} free of {format_bytes(device.total_bytes)}")


def _bar(device: DeviceReading, width: int) -> list[RenderableType]:
    """Processes of servers that are watched, other processes, and what nobody is named for."""
    if device.free_bytes is None:
        return []
    used = device.total_bytes - device.free_bytes
    watched = min(used, sum(one.used_bytes or 0 for one in device.holders if one.server))
    others = min(used - watched, sum(one.used_bytes or 0 for one in device.holders if not one.server))
    bar, cells = Text(no_wrap=True), max(10, width)
    for size, colour in ((watched, GREEN), (others, BLUE), (used - watched - others, GREY)):
        bar.append("█" * round(size / max(1, device.total_bytes) * cells), style=colour)
    return [bar.append("·" * (cells - len(bar)), style="dim")]


def _holders(device: DeviceReading) -> list[RenderableType]:
    if not device.holders:
        return [Text("no process is listed on it", style="dim")]
    table = plain_table("pid", "process", "used", "lease", "promised", "held", "server")
    for one in device.holders[:_ROWS]:
        _add(table, one)
    left = len(device.holders) - _ROWS
    return [table, *([Text(f"{left} more", style="dim")] if left > 0 else [])]


def _add(table: Table, one: MemoryHolder) -> None:
    sizes = size_text(one.promised_bytes), size_text(one.held_bytes)
    name = Text(printable(one.name, 40) or "(not seen)")
    table.add_row(str(one.pid), name, size_text(one.used_bytes) or "?", one.state or "-", *sizes, Text(one.server))


def _recordings(machine: MachineReading) -> list[RenderableType]:
    running = [one for one in machine.recordings if one.running]
    if not running:
        return []
    lines = [f"recording {one.path} of pid {one.pid}, for {seconds_text(one.age_seconds)}" for one in running]
    return [Text(), *(Text(printable(line, 300), style="dim") for line in lines)]
