"""What an engine holds and has done, for operators, commands and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from brim.engine.drafts.speculator import SpeculationFigures
from brim.engine.loop import ServingLoop
from brim.engine.schedule.figures import AdmissionFigures
from brim.engine.schedule.host_copies import PreemptionFigures


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """An engine at one moment. Counts are since it was built."""

    kv_tokens: int
    kv_bytes: int
    weight_bytes: int
    blocks_held: int
    blocks_cached: int
    blocks_free: int
    running: int
    waiting: int
    preemptions: int
    steps: int
    drawn: int
    admission: AdmissionFigures
    preemption: PreemptionFigures
    speculation: SpeculationFigures | None  # None: this engine does not speculate


def figures_of(loop: ServingLoop, kv_tokens: int, kv_bytes: int, weight_bytes: int) -> EngineFigures:
    """Those of the engine that this loop serves."""
    scheduler = loop.scheduler
    pools = scheduler.ledger.pools
    return EngineFigures(
        kv_tokens=kv_tokens,
        kv_bytes=kv_bytes,
        weight_bytes=weight_bytes,
        blocks_held=sum(pool.held for pool in pools),
        blocks_cached=sum(pool.cached for pool in pools),
        blocks_free=sum(pool.available - pool.cached for pool in pools),
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        preemptions=scheduler.preemptions,
        steps=loop.figures.steps,
        drawn=loop.figures.drawn,
        admission=scheduler.counts.figures,
        preemption=scheduler.host_copies.figures,
        speculation=None if loop.speculator is None else loop.speculator.figures,
    )
