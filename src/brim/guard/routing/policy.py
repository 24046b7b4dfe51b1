"""Where a request goes. In: the statistics of replicas (`Fleet`) and a request. Out: a `Route`, or a `RouteRefusal`.

For each replica, when would the request have its first tokens there?

    seconds = wait                                  until its blocks and a slot are free, by the forecast of its guard
            + ((prompt - prefix held) / prefill rate  what is left to compute
               + 8 steps)                             the first tokens: an answer is read as it goes on
              × (1 + load)                            beside what runs there: the fuller of KV pool and batch, 0 to 1

So a conversation stays where its blocks are, unless waiting there takes longer than computing them again elsewhere, and
a prefix that is computed within a few steps does not outweigh an empty replica. Degraded
replicas come after all healthy ones; those that drain or have ended get nothing. It is refused where no replica can
start it within its patience.

The rate (the highest) and the step (the shortest) are one for all: replicas of a deployment are of one kind, and one
that has had short prompts only, or none, has measured less than it can do. By its own figure it would get no prompt
that shows more. A slow one shows in its waits.

All replicas are looked at in each decision, as arrays: what it costs does not depend on the lengths of prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
import numpy.typing as npt

from brim.guard.routing.summary import Holders
from brim.records.health import Status
from brim.records.routing import ReplicaStatistics, Route, RouteRefusal, RouteRequest

FORECASTS = 8  # moments of a forecast
UNMEASURED_STEP_SECONDS = 0.02  # before any replica has run one
_BEST = 4  # replicas of a route: the others are for when the first is gone
_LONGEST_RETRY = 120  # seconds
_FAR = 1e9  # seconds
_FIRST_TOKENS = 8  # of an answer

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Fleet:
    """Replicas as columns of arrays. Names that are gone leave columns that are used again."""

    def __init__(self, room: int = 16) -> None:
        self._columns: dict[str, int] = {}
        self._names: list[str] = [""] * room
        self._holders = Holders(room)
        self._make(room)

    def _make(self, room: int) -> None:
        self._room = room
        self._figures = np.zeros((len(_FIGURES), room))
        self._seconds = np.zeros((FORECASTS, room))
        self._blocks = np.zeros((FORECASTS, room))
        self._slots = np.zeros((FORECASTS, room))
        self._alive = np.zeros(room, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def put(self, name: str, seen: ReplicaStatistics, *, sent_blocks: int = 0, sent_answers: int = 0) -> None:
        """What a replica has reported, and what was sent to it since."""
        new = name not in self._columns
        column = self._columns[name] if not new else self._new_column(name)
        self._figures[:, column] = [getattr(seen, field) for field in _FROM_RECORD] + [
            seen.status is Status.DEGRADED,
            seen.draining or seen.status is Status.ENDED,
            0.0,
            0.0,
        ]
        moments = seen.forecast[:FORECASTS]
        moments += moments[-1:] * (FORECASTS - len(moments))
        self._seconds[:, column] = [one.seconds for one in moments]
        self._blocks[:, column] = [one.blocks for one in moments]
        self._slots[:, column] = [one.slots for one in moments]
        self._alive[column] = True
        self._holders.put(column, seen.summary)
        self.sent(name, sent_blocks, sent_answers)

    def sent(self, name: str, blocks: int, answers: int) -> None:
        """All that was sent to it since its report."""
        column = self._columns[name]
        self._figures[_SENT_BLOCKS, column] = blocks
        self._figures[_SENT_ANSWERS, column] = answers

    def remove(self, name: str) -> None:
        column = self._columns.pop(name)
        self._names[column] = ""
        self._alive[column] = False

    def _new_column(self, name: str) -> int:
        if len(self._columns) == self._room:
            self._grow(2 * self._room)
        column = self._names.index("")
        self._names[column] = name
        self._columns[name] = column
        return column

    def _grow(self, room: int) -> None:
        before = self._figures, self._seconds, self._blocks, self._slots, self._alive
        count = self._room
        self._make(room)
        for old, new in zip(
            before, (self._figures, self._seconds, self._blocks, self._slots, self._alive), strict=True
        ):
            new[..., :count] = old
        self._names += [""] * (room - count)
        self._holders.grow(room)

    # -- decisions -----------------------------------------------------------------------------------------------

    def choose(self, asked: RouteRequest, known: Mapping[str, int] | None = None) -> Route | RouteRefusal:
        """`known`: blocks of its prefix that replicas hold, besides what their summaries say."""
        usable = self._usable(asked)
        if not usable.any():
            return self._refusal(asked, self._waits(asked))
        prefix = self._prefixes(asked, known or {})
        wait = self._waits(asked)
        in_time = usable & (wait <= asked.patience_seconds)
        if not in_time.any():
            return self._refusal(asked, np.where(usable, wait, _FAR))
        seconds = wait + self._compute_seconds(asked, prefix)
        order = self._order(in_time, seconds)
        best = order[0]
        return Route(tuple(self._names[one] for one in order), int(prefix[best]), float(wait[best]))

    def _usable(self, asked: RouteRequest) -> Flags:
        """Those that would let it in."""
        figures = self._figures
        # One that asks for more answers than there are places is let in alone; its replica refuses it by name.
        answers = np.minimum(asked.answers, figures[_PLACES])
        full = figures[_INSIDE] + figures[_SENT_ANSWERS] + answers > figures[_PLACES]
        usable = self._alive & (figures[_GONE] == 0) & ~full
        for name in asked.excluded:
            if name in self._columns:
                usable[self._columns[name]] = False
        return np.asarray(usable)

    def _prefixes(self, asked: RouteRequest, known: Mapping[str, int]) -> Floats:
        found = self._holders.prefixes(asked.digests).astype(np.float64)
        for name, blocks in known.items():
            if name in self._columns:
                column = self._columns[name]
                found[column] = max(found[column], min(blocks, len(asked.digests)))
        return found

    def _waits(self, asked: RouteRequest) -> Floats:
        """Seconds until its blocks and a slot are free, after those that wait already and those that were sent."""
        figures = self._figures
        # A request that needs more than the pool has waits for the whole of it; its replica refuses it by name.
        blocks = np.minimum(asked.blocks, figures[_BLOCKS]) + figures[_WAITING_BLOCKS] + figures[_SENT_BLOCKS]
        slots = np.minimum(asked.answers, figures[_SLOTS]) + figures[_WAITING] + figures[_SENT_ANSWERS]
        enough = (self._blocks >= blocks) & (self._slots >= slots)
        first = enough.argmax(axis=0)
        columns = np.arange(self._room)
        foreseen = self._seconds[first, columns]
        # Beyond what is foreseen: as many rounds of what runs now as there are batches before it.
        last = self._seconds[-1]
        rounds = np.maximum(
            blocks / np.maximum(1, figures[_BLOCKS]),
            slots / np.maximum(1, figures[_SLOTS]),
        )
        beyond = np.maximum(last, _LEAST_ROUND) * np.maximum(1, rounds)
        return np.asarray(np.where(enough.any(axis=0), foreseen, beyond))

    def _compute_seconds(self, asked: RouteRequest, prefix: Floats) -> Floats:
        figures = self._figures
        left = np.maximum(1, asked.tokens - prefix * figures[_BLOCK_SIZE])
        held = figures[_BLOCKS] - figures[_FREE_BLOCKS] + figures[_SENT_BLOCKS]
        running = figures[_RUNNING] + figures[_SENT_ANSWERS]
        load = np.maximum(held / np.maximum(1, figures[_BLOCKS]), running / np.maximum(1, figures[_SLOTS]))
        rate = figures[_PREFILL].max(where=self._alive, initial=0.0) or _UNMEASURED_RATE
        measured = self._alive & (figures[_STEP] > 0)
        step = figures[_STEP].min(where=measured, initial=_FAR) if measured.any() else UNMEASURED_STEP_SECONDS
        return np.asarray((_FIRST_TOKENS * step + left / rate) * (1 + np.minimum(1, load)))

    def _order(self, usable: Flags, seconds: Floats) -> list[int]:
        """Healthy ones before degraded ones; then the soonest; then the one with the most unused blocks."""
        figures = self._figures
        columns = np.flatnonzero(usable)
        if len(columns) > _BEST:  # sort only those that can be among the first
            keys = seconds[columns] + _FAR * figures[_DEGRADED, columns]
            limit = np.partition(keys, _BEST - 1)[_BEST - 1]
            columns = columns[keys <= limit]
        order = np.lexsort((-figures[_UNUSED, columns], seconds[columns], figures[_DEGRADED, columns]))
        found: list[int] = columns[order[:_BEST]].tolist()
        return found

    def _refusal(self, asked: RouteRequest, waits: Floats) -> RouteRefusal:
        there = waits[self._alive & (self._figures[_GONE] == 0)]
        soonest = float(there.min()) if len(there) else float(_LONGEST_RETRY)
        retry = max(1, min(_LONGEST_RETRY, ceil(soonest - asked.patience_seconds), ceil(soonest)))
        if not len(there):
            said = "no replica is serving"
        elif soonest >= _FAR or soonest <= asked.patience_seconds:
            said = f"the queues of all {len(there)} replicas are full"
        else:
            said = f"no replica can start it before {soonest:.0f} s, and it may wait {asked.patience_seconds:g} s"
        return RouteRefusal(retry, said)


_UNMEASURED_RATE = 2000.0  # tokens of prompts in a second, before any replica has computed one
_LEAST_ROUND = 0.05  # seconds that a batch takes, where no end is foreseen
_FROM_RECORD: Sequence[str] = (
    "block_size",
    "blocks",
    "free_blocks",
    "unused_blocks",
    "slots",
    "running",
    "waiting",
    "waiting_blocks",
    "inside",
    "places",
    "prefill_tokens_per_second",
    "step_seconds",
)
_FIGURES = (*_FROM_RECORD, "degraded", "gone", "sent_blocks", "sent_answers")
(
    _BLOCK_SIZE,
    _BLOCKS,
    _FREE_BLOCKS,
    _UNUSED,
    _SLOTS,
    _RUNNING,
    _WAITING,
    _WAITING_BLOCKS,
    _INSIDE,
    _PLACES,
    _PREFILL,
    _STEP,
    _DEGRADED,
    _GONE,
    _SENT_BLOCKS,
    _SENT_ANSWERS,
) = range(len(_FIGURES))
