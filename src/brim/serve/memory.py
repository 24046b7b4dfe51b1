"""`/v1/memory`: what the fit predicted and measured, what is used now, who runs, and what has happened.

Of requests, those of the key that asks are listed; of others it is told how many there are and what they hold.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from brim.records.lease import Lease
from brim.serve.device_bar import BarSegment, DeviceSnapshot, card_parts, ledger_lines
from brim.serve.lifecycle import AnyServer
from brim.serve.log import RequestLogEntry
from brim.version import __version__

if TYPE_CHECKING:
    from brim.engine.pool.figures import EngineFigures, RequestFigures
    from brim.reserve.sizing import Sizer

_LISTED = 200  # requests


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks, and what the event loop knows of the requests inside."""

    salt: bytes
    client: Mapping[str, Any]  # what it has of the queue
    under_way: Mapping[str, RequestLogEntry]  # by id
    watched: Mapping[str, Any]


def memory_report(running: AnyServer, asking: Asking) -> dict[str, Any]:
    """The ledger, with stable keys. Reads the leases from disk, so it runs in a thread."""
    started = running.started
    own, neighbours = _leases(started.neighbours)
    card = _snapshot(running, neighbours)
    figures, health, now = card.figures, card.health, card.now
    parts = card_parts(card)
    return {
        "object": "brim.memory",
        "version": __version__,
        "device": str(running.engine.device),
        "device_name": _device_name(running),
        "card": {"total_bytes": sum(part.bytes for part in parts), "parts": [asdict(part) for part in parts]},
        "ledger": ledger_lines(card),
        "kv": _kv(card, running.engine.longest_request),
        "weight_bytes": figures.weight_bytes,
        "now": None if now is None else asdict(now),
        "leases": None if own is None else [_lease(one) for one in (own, *neighbours)],
        "fit": None if started.report is None else started.report.to_json(),
        "requests": {
            "running": figures.running,
            "waiting": figures.waiting,
            "inside": running.gate.inside,
            "places": running.gate.places,
            "refused": running.gate.refused,
            "displaced": running.gate.displaced,
            "refused_by_client_limit": running.gate.refused_by_share,
            "client": asking.client,
            "preemptions": figures.preemptions,
            **_requests(running.engine.requests, asking),
        },
        "admission": asdict(figures.admission),
        "preemption": asdict(figures.preemption),
        "speculation": None if figures.speculation is None else asdict(figures.speculation),
        "health": asdict(health),
        **asking.watched,
    }


def device_parts(running: AnyServer) -> tuple[BarSegment, ...]:
    """The device as one bar. Reads the leases from disk too."""
    return card_parts(_snapshot(running, _leases(running.started.neighbours)[1]))


def _snapshot(running: AnyServer, neighbours: tuple[Lease, ...]) -> DeviceSnapshot:
    started = running.started
    now = None if started.probe is None else started.probe.reading()
    whole = None if started.neighbours is None else started.neighbours.device.total_bytes
    return DeviceSnapshot(running.engine.figures, running.serving.health, started.report, now, whole, neighbours)


def _device_name(running: AnyServer) -> str:
    device = running.engine.device
    if not str(device).startswith("cuda"):
        return "CPU"
    import torch

    return str(torch.cuda.get_device_name(device))


def _kv(card: DeviceSnapshot, longest_request: int) -> dict[str, Any]:
    figures: EngineFigures = card.figures
    return {
        "tokens": figures.kv_tokens,
        "bytes": figures.kv_bytes,
        "blocks": figures.blocks_held + figures.blocks_cached + figures.blocks_free,
        "blocks_held": figures.blocks_held,
        "blocks_cached": figures.blocks_cached,
        "blocks_free": figures.blocks_free,
        "blocks_evicted": figures.evicted_blocks,
        "held_bytes": card.kv_bytes[0],
        "longest_request_tokens": longest_request,
    }


def _requests(found: tuple[RequestFigures, ...], asking: Asking) -> dict[str, Any]:
    """Those of the key that asks, one by one; the others together."""
    own = [one for one in found if one.salt.startswith(asking.salt)]
    others = [one for one in found if not one.salt.startswith(asking.salt)]
    return {
        "active": [_request(one, asking.under_way) for one in own[:_LISTED]],
        "active_left_out": max(0, len(own) - _LISTED),
        "others": {"count": len(others), "blocks": sum(one.blocks for one in others)},
    }


def _request(one: RequestFigures, under_way: Mapping[str, RequestLogEntry]) -> dict[str, Any]:
    entry = under_way.get(one.id.partition("/")[0])
    return {
        "id": one.id,
        "index": one.index,
        "path": None if entry is None else entry.path,
        "state": "running" if one.running else "waiting",
        "seconds": None if entry is None else round(time.monotonic() - entry.began, 1),
        "prompt_tokens": one.prompt_tokens,
        "cached_tokens": one.reused_tokens,
        "computed_tokens": one.computed_tokens,
        "drawn_tokens": one.drawn_tokens,
        "max_tokens": one.most_tokens,
        "blocks": one.blocks,
        "preemptions": one.preemptions,
    }


def _leases(sizer: Sizer | None) -> tuple[Lease | None, tuple[Lease, ...]]:
    """This server's, and those of its neighbours."""
    return (None, ()) if sizer is None else (sizer.lease, sizer.neighbours())


def _lease(lease: Lease) -> dict[str, Any]:
    return {
        "pid": lease.holder.pid,
        "role": lease.role,
        "state": str(lease.state),
        "promised_bytes": lease.promised_bytes,
        "held_bytes": lease.held_bytes,
    }
