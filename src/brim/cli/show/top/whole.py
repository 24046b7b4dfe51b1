"""All that `brim top` shows of one moment: servers, and the machine below them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from brim.cli.show.top.any_server import any_server_view
from brim.cli.show.top.brim_server import server_view
from brim.cli.show.top.machine import machine_view
from brim.monitor.machine import MachineReading
from brim.monitor.server import ServerReading
from brim.monitor.watched import SeenServer, TopReading

_ODD = (KeyError, TypeError, ValueError, IndexError, AttributeError)  # a report that is not as this version writes it


def top_view(seen: TopReading, width: int, height: int | None = None) -> RenderableType:
    parts: list[RenderableType] = []
    alone = len(seen.servers) == 1
    for one in seen.servers if seen.expected else ():
        parts += [*_server(one, seen, width, height if alone else None), Text()]
    if seen.machine is not None and not _says_its_machine(seen):
        parts += machine_view(seen.machine, width)
    if not seen.expected:
        where = ", ".join(one.url for one in seen.servers)
        parts += [Text(), Text(f"no server answers at {where}; name one with --url", style="dim")]
    return Group(*parts)


def top_json(seen: TopReading) -> dict[str, Any]:
    """What a server of Brim says of its memory stays at the top where it is the only one."""
    servers = [_server_json(one) for one in seen.servers if one.expected]
    whole = {"servers": servers, "machine": None if seen.machine is None else seen.machine.to_json()}
    reports = [one["memory"] for one in servers if one["memory"] is not None]
    return {"object": "brim.top"} | (reports[0] if len(servers) == len(reports) == 1 else {}) | whole


def _server(one: SeenServer, seen: TopReading, width: int, height: int | None) -> list[RenderableType]:
    if one.reading is None:
        return [Text(one.problem, style="bold red")]
    problem = [Text(f"{one.problem}; this is what it said last", style="bold red")] if one.problem else []
    return [*problem, _reading(one.reading, seen.machine, width, height)]


def _reading(reading: ServerReading, machine: MachineReading | None, width: int, height: int | None) -> RenderableType:
    if reading.memory is not None:
        try:
            return server_view(reading.memory, width, height)
        except _ODD:
            pass  # its metrics are shown instead
    free = None if machine is None else machine.free_beside(reading.url)
    return any_server_view(reading, free, width)


def _says_its_machine(seen: TopReading) -> bool:
    """A server of Brim shows its own device and the leases on it; other cards are shown below it."""
    reading = seen.servers[0].reading if len(seen.servers) == 1 else None
    return (
        reading is not None
        and reading.memory is not None
        and seen.machine is not None
        and len(seen.machine.gpus) <= 1
        and not any(not holder.server for gpu in seen.machine.gpus for holder in gpu.holders)
    )


def _server_json(one: SeenServer) -> dict[str, Any]:
    reading = one.reading
    found: dict[str, Any] = {"url": one.url, "problem": one.problem or None, "engine": None, "memory": None}
    if reading is None:
        return found
    figures = asdict(reading.figures)
    for name in ("first_token", "between_tokens"):  # as percentiles below
        figures.pop(name)
    pool = reading.figures.pool
    if pool is not None:
        figures["pool"] |= {
            "held_fraction": round(pool.held_fraction, 6),
            "cached_fraction": round(pool.cached_fraction, 6),
            "tokens": pool.tokens,
            "held_tokens": pool.held_tokens,
        }
    told = {"time": round(reading.time, 3), **figures, "rates": asdict(reading.rates), "memory": reading.memory}
    return found | told
