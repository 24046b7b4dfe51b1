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
from brim.cli.show.top.rows import delays_text, figures_table, plain_table, seconds_text, size_text
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
    return line.append(f"  up {seconds_text(report['time'] - report['began'])}", style="dim")


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
    latency = _latency(report.get("latency"))
    if latency:
        rows.insert(3, ("latency", Text(latency)))
    return figures_table(rows)


def _pool(kv: Json) -> str:
    blocks = max(1, kv["blocks"])
    used, cached = kv["blocks_held"] / blocks, kv["blocks_cached"] / blocks
    return f"{used:.0%} used, {cached:.0%} cached, of {kv['tokens']:,} tokens"


def _rates(rates: Json) -> str:
    drawn, computed = rates["drawn_tokens_per_second"], rates["computed_tokens_per_second"]
    return f"{drawn:,.0f} ({computed:,.0f} with those of prompts)"


def _latency(latency: Json | None) -> str:
    """Of the last minute; empty where nothing was generated in it."""

    def both(name: str) -> tuple[float, float] | None:
        found: Json = latency[name] if latency else {}
        return (found["p50_ms"] / 1000, found["p99_ms"] / 1000) if found.get("p50_ms") is not None else None

    return delays_text(both("first_token"), both("between_tokens"), "last minute")


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
    return Text(f"holding for {seconds_text(report['time'] - gate['since'])}: {gate['reason']}", style="yellow")


def _leases(leases: Sequence[Json] | None) -> list[RenderableType]:
    if not leases:
        return []
    table = plain_table("pid", "role", "state", "promised", "held")
    for number, one in enumerate(leases):
        role = f"{one['role']} (this server)" if number == 0 else str(one["role"])
        sizes = (size_text(one["promised_bytes"]), size_text(one["held_bytes"]))
        table.add_row(str(one["pid"]), Text(role), str(one["state"]), *sizes)
    return [Text(), table]


def _requests(requests: Json, most: int | None) -> list[RenderableType]:
    active, others = requests["active"], requests["others"]
    shown = active[:most]
    table = plain_table("request", "state", "prompt", "cached", "answer", "blocks", "age")
    for one in shown:
        answer = f"{one['drawn_tokens']:,} of {one['max_tokens']:,}"
        figures = (f"{one['prompt_tokens']:,}", f"{one['cached_tokens']:,}", answer, f"{one['blocks']:,}")
        table.add_row(Text(str(one["id"])), str(one["state"]), *figures, seconds_text(one["seconds"]))
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
