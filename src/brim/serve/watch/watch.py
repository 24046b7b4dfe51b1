"""A server's recent past: a sample each second for ten minutes, and the last events.

In: an engine's figures and health, the refusals of the queue, and requests as they end. Out: samples and events with
numbers that only grow, so that a reader asks for what is new. Nothing here is about one request or one key.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from brim.records.health import Health, Status
from brim.serve.watch.changes import Change, ChangeDetector
from brim.serve.watch.latencies import TokenLatencies
from brim.serve.watch.record import SAMPLE_COLUMNS, Counts, EventKind, GateState, Sample, WatchEvent

if TYPE_CHECKING:
    from brim.engine.pool.figures import EngineFigures

Numbered = TypeVar("Numbered", WatchEvent, Sample)
EVERY_SECONDS = 1.0
_SAMPLES = 600
_EVENTS = 256
_RATE_SAMPLES = 5  # that a rate is the mean of


class ServerWatch:
    """Looks at one server; in the event loop's thread alone."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.began = wall_clock()
        self.gate = GateState()
        self.latencies = TokenLatencies(clock)
        self._clock = clock
        self._wall_clock = wall_clock
        self._changes = ChangeDetector(clock)
        self._last: tuple[float, Counts] | None = None
        self._rolled_tokens = self._failed = 0
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._events: deque[WatchEvent] = deque(maxlen=_EVENTS)
        self._numbers = 0
        self.listener: Callable[[Change], object] | None = None  # is told every event too

    async def keep_sampling(self, sample: Callable[[], None]) -> None:
        """Until it is cancelled."""
        while True:
            sample()
            await asyncio.sleep(EVERY_SECONDS)

    def ended(self, *, evicted_tokens: int, status: int) -> None:
        """A request has ended."""
        self._rolled_tokens += evicted_tokens
        self._failed += status == 500

    def sample(self, figures: EngineFigures, health: Health, refused: int) -> None:
        """Take a sample, and note what has happened since the last one."""
        counts = self._counts(figures, health, refused)
        for change in self._changes.between(counts):
            self._tell(change)
        before, self._last = self._last, (self._clock(), counts)
        if before is not None:
            self._watch_gate(before[1], counts)
            self._samples.append(self._sample(before[0], before[1], counts))

    def rates(self) -> tuple[float, float]:
        """Tokens drawn and tokens computed in a second, over the last few."""
        recent = list(self._samples)[-_RATE_SAMPLES:]
        count = max(1, len(recent))
        drawn = sum(one.drawn_per_second for one in recent) / count
        return drawn, sum(one.computed_per_second for one in recent) / count

    def report(self, after: int = 0) -> dict[str, Any]:
        """For `/v1/memory`: the gate, rates, latencies, and the events and samples whose number is above `after`."""
        drawn, computed = self.rates()
        return {
            "began": round(self.began, 3),
            "time": round(self._wall_clock(), 3),
            "last_number": self._numbers,
            "gate": {"state": "holding" if self.gate.holding else "open", **asdict(self.gate)},
            "throughput": {
                "drawn_tokens_per_second": round(drawn, 1),
                "computed_tokens_per_second": round(computed, 1),
            },
            "latency": self.latencies.report(),
            "events": [event.to_json() for event in _newer(self._events, after)],
            "samples": {"columns": SAMPLE_COLUMNS, "rows": [one.row() for one in _newer(self._samples, after)]},
        }

    def _counts(self, figures: EngineFigures, health: Health, refused: int) -> Counts:
        return Counts(
            drawn=figures.drawn,
            computed=figures.computed,
            refused=refused,
            preemptions=figures.preemptions,
            evicted_blocks=figures.evicted_blocks,
            rolled_tokens=self._rolled_tokens,
            rescues=health.rescues,
            failed=self._failed,
            rebuilds=health.rebuilds,
            held=figures.admission.held_for_blocks + figures.admission.held_for_slots,
            held_reason=figures.admission.last_held,
            running=figures.running,
            waiting=figures.waiting,
            blocks_held=figures.blocks_held,
            blocks_cached=figures.blocks_cached,
            status=str(health.status),
            status_reason=health.reason if health.status is not Status.READY else "",
        )

    def _sample(self, since: float, before: Counts, now: Counts) -> Sample:
        seconds = max(1e-3, self._clock() - since)
        return Sample(
            number=self._next(),
            time=self._wall_clock(),
            drawn_per_second=max(0, now.drawn - before.drawn) / seconds,
            computed_per_second=max(0, now.computed - before.computed) / seconds,
            running=now.running,
            waiting=now.waiting,
            blocks_held=now.blocks_held,
            blocks_cached=now.blocks_cached,
        )

    def _watch_gate(self, before: Counts, now: Counts) -> None:
        """It holds while requests wait and are decided about, and none of them may start."""
        holding = now.waiting > 0 and now.held > before.held
        if holding:
            since = self.gate.since if self.gate.holding else self._wall_clock()
            if not self.gate.holding:
                self._tell(Change(EventKind.GATE, now.waiting, f"requests are held: {now.held_reason}"))
            self.gate = GateState(True, now.held_reason, since)
        elif self.gate.holding and not now.waiting:
            held = self._wall_clock() - self.gate.since
            self._tell(Change(EventKind.GATE, 0, f"no request waits any more, after {held:.0f} s"))
            self.gate = GateState(False, "", self._wall_clock())

    def _tell(self, change: Change) -> None:
        if self.listener is not None:
            self.listener(change)
        self._events.append(WatchEvent(self._next(), self._wall_clock(), change.kind, change.count, change.text))

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers


def _newer(found: Iterable[Numbered], number: int) -> list[Numbered]:
    return [one for one in found if one.number > number]
