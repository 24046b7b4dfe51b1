"""`/v1/memory`: what the fit predicted and measured, what is used now, and how the engine is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from brim.serve.life import Running


def memory_report(running: Running) -> dict[str, Any]:
    """The ledger, with stable keys."""
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
        "fit": None if started.report is None else started.report.to_json(),
        "requests": {
            "running": figures.running,
            "waiting": figures.waiting,
            "inside": running.gate.inside,
            "places": running.gate.places,
            "preemptions": figures.preemptions,
        },
        "admission": asdict(figures.admission),
        "health": asdict(running.serving.health),
    }
