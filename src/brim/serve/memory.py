"""`/v1/memory`: what the fit predicted and measured, what is used now, and how the engine is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from brim.records.lease import Lease
from brim.serve.life import Running

if TYPE_CHECKING:
    from brim.reserve.sizing import Sizer


def memory_report(running: Running) -> dict[str, Any]:
    """The ledger, with stable keys. Reads the leases from disk."""
    started, figures = running.started, running.engine.figures
    blocks = figures.blocks_held + figures.blocks_cached + figures.blocks_free
    return {
        "object": "brim.memory",
        "device": str(running.engine.device),
        "kv": {
            "tokens": figures.kv_tokens,
            "bytes": figures.kv_bytes,
            "blocks": blocks,
            "blocks_held": figures.blocks_held,
            "blocks_cached": figures.blocks_cached,
            "blocks_free": figures.blocks_free,
            "held_bytes": figures.kv_bytes * figures.blocks_held // max(1, blocks),
            "longest_request_tokens": running.engine.longest_request,
        },
        "weight_bytes": figures.weight_bytes,
        "now": None if started.probe is None else asdict(started.probe.reading()),
        "leases": None if started.neighbours is None else _leases(started.neighbours),
        "fit": None if started.report is None else started.report.to_json(),
        "requests": {
            "running": figures.running,
            "waiting": figures.waiting,
            "inside": running.gate.inside,
            "places": running.gate.places,
            "preemptions": figures.preemptions,
        },
        "admission": asdict(figures.admission),
        "preemption": asdict(figures.preemption),
        "speculation": None if figures.speculation is None else asdict(figures.speculation),
        "health": asdict(running.serving.health),
    }


def _leases(sizer: Sizer) -> list[dict[str, Any]]:
    """Who has promised to take what of the device, and holds what; this server first."""
    return [_lease(sizer.lease), *(_lease(one) for one in sizer.neighbours())]


def _lease(lease: Lease) -> dict[str, Any]:
    return {
        "pid": lease.holder.pid,
        "role": lease.role,
        "state": str(lease.state),
        "promised_bytes": lease.promised_bytes,
        "held_bytes": lease.held_bytes,
    }
