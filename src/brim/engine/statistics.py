"""What the engine's thread knows and a router asks for: blocks, who waits, which ends are foreseen, what is cached.

Read in the engine's thread, between two steps (`StreamingEngine.call`): the guard's sums are changed there. It copies
numbers and references, and computes nothing that grows with the length of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.engine.loop import ServingLoop


@dataclass(frozen=True, slots=True)
class End:
    """A running request whose end is foreseen."""

    steps: int  # from now
    blocks: int  # that are free then: what others share is not


@dataclass(frozen=True, slots=True)
class PoolState:
    """An engine as its guard sees it."""

    block_size: int
    blocks: int
    free_blocks: int  # that can be handed out
    unused_blocks: int  # of these, without a content that can be found
    slots: int
    running: int
    waiting: int
    waiting_blocks: int
    ends: tuple[End, ...]  # soonest first
    steps: int  # so far
    tokens: int  # computed so far
    busy_seconds: float  # that the loop has worked
    digests: tuple[bytes, ...]  # of all blocks that can be found by content


def pool_state(loop: ServingLoop) -> PoolState:
    scheduler, figures = loop.scheduler, loop.figures
    ledger, forecast = scheduler.ledger, scheduler.forecast
    pool = ledger.pools[ledger.main_group] if ledger.pools else None
    waiting = list(scheduler.waiting)
    return PoolState(
        block_size=ledger.block_size,
        blocks=1 if pool is None else pool.blocks,
        free_blocks=1 if pool is None else pool.available,
        unused_blocks=1 if pool is None else pool.available - pool.cached,
        slots=scheduler.limits.max_batch,
        running=len(scheduler.running),
        waiting=len(waiting),
        waiting_blocks=sum(map(forecast.expected_blocks, waiting)),
        ends=tuple(End(steps, blocks) for steps, blocks in forecast.ends()),
        steps=figures.steps,
        tokens=figures.tokens,
        busy_seconds=figures.planning_seconds
        + figures.launching_seconds
        + figures.waiting_seconds
        + figures.reading_seconds,
        digests=() if pool is None else pool.contents(),
    )
