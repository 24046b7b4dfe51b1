"""What an engine holds and has done, for operators, commands and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from brim.engine.drafts.speculator import SpeculationFigures
from brim.engine.loop import ServingLoop
from brim.engine.requests.sequence import Sequence
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
    computed: int = 0  # tokens, of prompts and answers
    evicted_blocks: int = 0  # of cached prefixes, for requests that needed them


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """A request that waits or runs, at one moment."""

    id: str
    index: int  # which of the answers to its prompt
    salt: bytes  # whose it is
    running: bool
    prompt_tokens: int
    reused_tokens: int  # of the prompt, found in the KV pool
    computed_tokens: int
    drawn_tokens: int
    most_tokens: int  # that it may draw
    blocks: int
    preemptions: int


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
        evicted_blocks=sum(pool.evictions for pool in pools),
        steps=loop.figures.steps,
        computed=loop.figures.tokens,
        drawn=loop.figures.drawn,
        admission=scheduler.counts.figures,
        preemption=scheduler.host_copies.figures,
        speculation=None if loop.speculator is None else loop.speculator.figures,
    )


def requests_of(loop: ServingLoop) -> tuple[RequestFigures, ...]:
    """Those that run in the order of admission, then those that wait. From any thread: both lists are copied whole."""
    scheduler = loop.scheduler
    return tuple(_request(one) for one in (*list(scheduler.running), *scheduler.waiting.copy()))


def _request(sequence: Sequence) -> RequestFigures:
    request, blocks = sequence.request, sequence.blocks
    held = 0 if blocks is None else sum(map(len, blocks.tables)) - sum(blocks.given_up)
    return RequestFigures(
        id=request.id,
        index=request.index,
        salt=request.salt,
        running=sequence.slot is not None,
        prompt_tokens=sequence.prompt_length,
        reused_tokens=sequence.reused,
        computed_tokens=sequence.computed,
        drawn_tokens=sequence.generated,
        most_tokens=request.max_tokens,
        blocks=max(0, held),
        preemptions=sequence.preemptions,
    )
