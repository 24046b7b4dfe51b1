"""A server's memory for a terminal: the device as a bar, figures, neighbours, requests, and what has happened.

In: what `/v1/memory` says. Out: something that `rich` prints, no higher than the terminal where its height is known.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from brim.cli.show.bars import Item, bar_key, memory_bar
from brim.cli.show.palette import item_colour
from brim.units import format_bytes

Json = Mapping[str, Any]
_STATES = {"ready": "green", "degraded": "yellow", "draining": "yellow", "ended": "bold red"}
_LEAST_ROWS = 3  # of requests, however small the terminal is
_EVENTS = 5


def server_view(report: Json, width: int, height: int | None = None) -> RenderableType:
    items = _items(report)
    above: list[RenderableType] = [
        _headline(report),
        Text(),
        memory_bar(items, int(report["card"]["total_bytes"]), width),
        bar_key(items, width),
        Text(),
        _figures(report),
        *_leases(report.get("leases")),
    ]
    events = _events(report["events"])
    used = 12 + len(items) // 4 + len(report.get("leases") or ()) + len(report["events"][-_EVENTS:])
    rows = None if height is None else max(_LEAST_ROWS, height - used - 6)
    return Group(*above, *_requests(report["requests"], rows), *events)


def _headline(report: Json) -> Text:
    health = report["health"]
    line = Text().append(str(report["model"]), style="bold").append(f" on {report['device_name']}  ")
    line.append(str(health["status"]), style=_STATES.get(str(health["status"]), ""))
    if health["reason"]:
        line.append(f": {health['reason']}", style="dim")
    return line.append(f"  up {_seconds(report['time'] - report['began'])}", style="dim")


def _items(report: Json) -> list[Item]:
    """What is free has no colour: the bar draws it as dots."""
    parts = ((str(part["name"]), int(part["bytes"])) for part in report["card"]["parts"])
    return [(name, size, item_colour(name)) for name, size in parts if name != "free"]


def _figures(report: Json) -> Table:
    rows: list[tuple[str, Text]] = [
        ("KV pool", Text(_pool(report["kv"]))),
        ("tokens/s", Text(_rates(report["throughput"]))),
        ("requests", Text(_inside(report["requests"]))),
        ("gate", _gate(report)),
        ("headroom", Text(_headroom(report["now"]))),
        ("so far", Text(_so_far(report))),
    ]
    table = Table.grid(padding=(0, 2))
    for name, text in rows:
        table.add_row(Text(name, style="dim"), text)
    return table


def _pool(kv: Json) -> str:
    blocks = max(1, kv["blocks"])
    used, cached = kv["blocks_held"] / blocks, kv["blocks_cached"] / blocks
    return f"{used:.0%} used, {cached:.0%} cached, of {kv['tokens']:,} tokens"


def _rates(rates: Json) -> str:
    drawn, computed = rates["drawn_tokens_per_second"], rates["computed_tokens_per_second"]
    return f"{drawn:,.0f} ({computed:,.0f} with those of prompts)"


def _inside(requests: Json) -> str:
    running, waiting, inside, places = (requests[name] for name in ("running", "waiting", "inside", "places"))
    return f"{running:,} running, {waiting:,} waiting, {inside:,} of {places:,} queue slots used"


def _headroom(now: Json | None) -> str:
    return "not known" if now is None else f"{format_bytes(now['free_bytes'])} free now"


def _so_far(report: Json) -> str:
    requests = report["requests"]
    return (
        f"{report['health']['rescues']:,} rescues, {requests['preemptions']:,} preemptions, "
        f"{requests['refused']:,} refused, {report['kv']['blocks_evicted']:,} blocks evicted"
    )


def _gate(report: Json) -> Text:
    gate = report["gate"]
    if gate["state"] == "open":
        return Text("open")
    return Text(f"holding for {_seconds(report['time'] - gate['since'])}: {gate['reason']}", style="yellow")


def _leases(leases: Sequence[Json] | None) -> list[RenderableType]:
    if not leases:
        return []
    table = _table("pid", "role", "state", "promised", "held")
    for number, one in enumerate(leases):
        role = f"{one['role']} (this server)" if number == 0 else str(one["role"])
        sizes = (_size(one["promised_bytes"]), _size(one["held_bytes"]))
        table.add_row(str(one["pid"]), Text(role), str(one["state"]), *sizes)
    return [Text(), table]


def _requests(requests: Json, most: int | None) -> list[RenderableType]:
    active, others = requests["active"], requests["others"]
    shown = active[:most]
    table = _table("request", "state", "prompt", "cached", "answer", "blocks", "age")
    for one in shown:
        answer = f"{one['drawn_tokens']:,} of {one['max_tokens']:,}"
        figures = (f"{one['prompt_tokens']:,}", f"{one['cached_tokens']:,}", answer, f"{one['blocks']:,}")
        table.add_row(Text(str(one["id"])), str(one["state"]), *figures, _seconds(one["seconds"]))
    left = len(active) - len(shown) + requests["active_left_out"]
    notes = [f"{left:,} more"] if left else []
    if others["count"]:
        notes.append(f"{others['count']:,} of other keys with {others['blocks']:,} blocks")
    found: list[RenderableType] = [Text(), table] if shown else []
    return [*found, Text("; ".join(notes), style="dim")] if notes else found


def _events(events: Sequence[Json]) -> list[RenderableType]:
    if not events:
        return []
    table = Table.grid(padding=(0, 2))
    for one in events[: -_EVENTS - 1 : -1]:
        when = time.strftime("%H:%M:%S", time.localtime(one["time"]))
        table.add_row(Text(when, style="dim"), str(one["kind"]), Text(str(one["text"])))
    return [Text(), table]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name, justify="left" if name in ("request", "role", "state") else "right", no_wrap=True)
    return table


def _size(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


def _seconds(seconds: float | None) -> str:
    """42 s, 3 min, 5 h."""
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{round(minutes / 60)} h"
