"""What a server tells a router: `ReplicaStatistics`, of a bounded size, by the forecast of its own guard.

Blocks and ends are read in the engine's thread, between two steps; all that takes longer (the summary of prefixes) is
made in another one. Rates are measured: what the loop has computed between two reports, in the time that it worked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from brim.engine.statistics import PoolState
from brim.guard.routing.policy import FORECASTS, UNMEASURED_STEP_SECONDS
from brim.guard.routing.summary import MOST_DIGESTS, summarise
from brim.records.routing import Forecast, ReplicaStatistics
from brim.serve.lifecycle import RunningServer, ServerLifecycle

_FADING = 0.995  # of the highest rate, with each report: one lucky step is not remembered for ever
_NEW_PART = 0.3  # of a mean that follows the latest steps


@dataclass(slots=True)
class MeasuredRates:
    """How fast an engine is, from what it has done between reports."""

    step_seconds: float = 0.0  # this and the next: 0 is not measured
    prefill_tokens_per_second: float = 0.0
    _steps: int = 0
    _tokens: int = 0
    _busy_seconds: float = 0.0

    def note(self, state: PoolState) -> None:
        steps, tokens = state.steps - self._steps, state.tokens - self._tokens
        seconds = state.busy_seconds - self._busy_seconds
        self._steps, self._tokens, self._busy_seconds = state.steps, state.tokens, state.busy_seconds
        if steps <= 0 or seconds <= 0:
            return  # idle, or a pool that was built again
        mean = seconds / steps
        self.step_seconds += (_NEW_PART if self.step_seconds else 1.0) * (mean - self.step_seconds)
        # The most tokens in a second: steps that only decode say nothing of how fast prompts are computed.
        self.prefill_tokens_per_second = max(self.prefill_tokens_per_second * _FADING, tokens / seconds)


class RoutingReports:
    """The reports of one server, numbered."""

    def __init__(self, lifecycle: ServerLifecycle, most_digests: int = MOST_DIGESTS) -> None:
        self._lifecycle = lifecycle
        self._most_digests = most_digests
        self._rates = MeasuredRates()
        self._number = 0

    async def report(self) -> ReplicaStatistics | None:
        """How it is now; None while it starts, and once its engine has ended."""
        running = self._lifecycle.running
        if running is None or not running.serving.alive:
            return None
        state = await asyncio.wrap_future(running.serving.call(running.engine.pool_state))
        self._rates.note(state)
        summary = await asyncio.to_thread(summarise, state.digests, self._most_digests)
        self._number += 1
        return ReplicaStatistics(
            number=self._number,
            status=running.serving.health.status,
            block_size=state.block_size,
            blocks=state.blocks,
            free_blocks=state.free_blocks,
            unused_blocks=state.unused_blocks,
            slots=state.slots,
            running=state.running,
            waiting=state.waiting + _not_submitted(running, state),
            waiting_blocks=state.waiting_blocks,
            inside=running.gate.inside,
            places=running.gate.places,
            prefill_tokens_per_second=self._rates.prefill_tokens_per_second,
            step_seconds=self._rates.step_seconds,
            forecast=forecast(state, self._rates.step_seconds or UNMEASURED_STEP_SECONDS),
            summary=summary,
            draining=self._lifecycle.draining,
        )


def _not_submitted(running: RunningServer, state: PoolState) -> int:
    """Answers that were let in and are not in the engine yet: their prompts are being made."""
    return max(0, running.gate.inside - state.running - state.waiting)


def forecast(state: PoolState, step_seconds: float) -> tuple[Forecast, ...]:
    """Blocks and slots that are free now, and at some of the ends to come."""
    blocks, slots = state.free_blocks, state.slots - state.running
    found = [Forecast(0.0, blocks, slots)]
    chosen = _spread(len(state.ends), FORECASTS - 1)
    for number, end in enumerate(state.ends):
        blocks, slots = blocks + end.blocks, slots + 1
        if number in chosen:
            found.append(Forecast(end.steps * step_seconds, min(blocks, state.blocks), min(slots, state.slots)))
    return tuple(found)


def _spread(count: int, most: int) -> frozenset[int]:
    """At most so many of the numbers below `count`, evenly, the last one among them."""
    if count <= most:
        return frozenset(range(count))
    return frozenset((place + 1) * count // most - 1 for place in range(most))
