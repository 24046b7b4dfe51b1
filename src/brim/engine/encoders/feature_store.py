"""Between an engine's requests and its encoders: who waits for which features, and where those lie.

The scheduler asks whether a request's features are there (`ready`); if not, the request waits in the queue and others
go on. The runner takes features from here when a step needs them (`of`). Once a turn, the engine lets finished features
be copied in and requests be served in the order in which they asked (`turn`). Features are kept in memory of a fixed
size, by what they show and by the salt of their request, until others need the room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from brim.engine.encoders.among_ranks import RankEncoders
from brim.engine.encoders.areas import type_of
from brim.engine.encoders.feature_cache import FeatureCache
from brim.engine.encoders.pool import Encoded, EncoderFigures, Encoders, Job, NotEncoded
from brim.engine.media.parts import Features, MediaKind, MediaPart, PromptMedia
from brim.engine.requests.sequence import Sequence

if TYPE_CHECKING:
    from brim.engine.ranks.ranks import Ranks
    from brim.engine.requests.request import Request

_IDLE_SECONDS = 0.005  # an engine with nothing else to do looks so often


@dataclass(slots=True, eq=False)
class _Wanted:
    """What one request needs."""

    keys: tuple[Hashable, ...]  # of its parts from the first that it needs; each once
    parts: dict[Hashable, int]  # the number of a part with that key
    until: int  # when so many tokens are computed, it needs nothing more
    placed: bool = False  # all of them are pinned
    missing: set[Hashable] = field(default_factory=set)  # not encoded yet


@dataclass(frozen=True, slots=True, eq=False)
class LostRequest:
    """A request whose media cannot be encoded."""

    sequence: Sequence
    why: str
    passing: bool  # they may be later


class FeatureStore:
    """The features of one engine's media."""

    def __init__(
        self, encoders: Encoders | RankEncoders, rows: int, device: torch.device, ranks: Ranks | None = None
    ) -> None:
        """With `ranks`, every one has a store, and the first sends features to the others."""
        facts = encoders.facts
        self._encoders = encoders
        self._ranks = ranks
        self._device = device
        self._dtype = type_of(facts.dtype)
        self._width, self._levels = facts.width, facts.levels
        self._shelf = FeatureCache(rows)
        self._memory: torch.Tensor | None = None
        self._wanted: dict[Sequence, _Wanted] = {}
        self._queue: deque[Sequence] = deque()  # not placed yet, in the order in which they asked
        self._copying: deque[tuple[Any, Encoded]] = deque()  # events of the device
        self._blank = False
        self.arrivals = 0  # changes whenever a request may have become ready
        self.found_again = 0  # parts whose features were there already

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        return self._shelf.rows * self._width * self._dtype.itemsize

    @property
    def rows(self) -> int:
        """Most tokens of media that a request may have."""
        return self._shelf.rows

    def build(self) -> None:
        self._memory = torch.empty(self._shelf.rows, self._width, dtype=self._dtype, device=self._device)

    def teardown(self) -> None:
        for sequence in list(self._wanted):
            self._forget(sequence)
        self._shelf.clear()
        self._memory = None

    def close(self) -> None:
        self._encoders.close()

    @property
    def figures(self) -> EncoderFigures:
        return self._encoders.figures

    @property
    def refusal(self) -> str:
        return self._encoders.refusal

    @property
    def problem(self) -> str:
        return self._encoders.problem

    @contextmanager
    def blank(self) -> Iterator[None]:
        """Steps in here get features that mean nothing, for media that nobody encodes."""
        self._blank = True
        try:
            yield
        finally:
            self._blank = False

    # -- for the scheduler ---------------------------------------------------------------------------------------

    def waits(self, sequence: Sequence) -> bool:
        """Whether a request has asked for features that are not there yet."""
        wanted = self._wanted.get(sequence)
        return wanted is not None and not (wanted.placed and not wanted.missing)

    def ready(self, sequence: Sequence, start: int) -> bool:
        """Whether all features of its tokens from `start` on are there; if not, they are asked for."""
        media = sequence.request.media
        if media is None:
            return True
        needed = _needed(media, start)
        if not needed:
            return True
        parts = {_key(sequence.request, media, number): number for number in needed}
        wanted = self._wanted.get(sequence)
        if wanted is None or not parts.keys() <= wanted.parts.keys():
            self._forget(sequence)
            wanted = _Wanted(tuple(parts), parts, int(media.places[-1]) + 1)
            self._wanted[sequence] = wanted
            self._queue.append(sequence)
            self._place_next()
        return not self.waits(sequence)

    # -- for the runner ------------------------------------------------------------------------------------------

    def of(self, sequence: Sequence, number: int, some: slice, *, last: bool) -> Features:
        assert self._memory is not None
        media = sequence.request.media
        if self._blank:
            rows = self._memory[:1].expand(some.stop - some.start, -1)
            return self._features(rows, media.parts[number])
        entry = self._shelf.find(_key(sequence.request, media, number))
        assert entry is not None, "a request runs when its features are there"
        return self._features(self._memory[entry.start + some.start : entry.start + some.stop], media.parts[number])

    def _features(self, rows: torch.Tensor, part: MediaPart) -> Features:
        first, *deep = rows.chunk(self._levels, dim=1)
        return Features(first, () if part.kind is MediaKind.AUDIO else tuple(deep))

    @property
    def tensors(self) -> list[torch.Tensor]:
        return []  # its memory is part of what was built

    def forget_ended(self) -> None:
        """Once a turn."""

    def without(self, running: Collection[Sequence]) -> int:
        return 0

    def clear(self) -> None:
        """Features do not depend on the KV pool, and stay when that is rebuilt."""

    # -- for the engine ------------------------------------------------------------------------------------------

    def turn(self) -> list[LostRequest]:
        """Go on as far as that is possible without waiting; requests whose media cannot be encoded."""
        if not self._wanted and not self._encoders.working and not self._encoders.problem and not self._copying:
            return []
        self._let_go()
        self._release_copied()
        if isinstance(self._encoders, RankEncoders) and not self._wanted:  # the same on all ranks
            self._encoders.tend()
            return []
        done, failed = self._encoders.poll()
        for encoded in done:
            self._take_in(encoded)
        lost = [request for one in failed for request in self._lost(one)]
        self._place_next()
        return lost

    def rest(self) -> None:
        """Nothing else can be done: wait for encoders, a little."""
        if self._wanted:
            self._encoders.wait(_IDLE_SECONDS)

    def _let_go(self) -> None:
        """Unpin what requests need no more: those that have ended, and those that have computed all their media."""
        for sequence, wanted in list(self._wanted.items()):
            if sequence.finish is not None or (sequence.slot is not None and sequence.computed >= wanted.until):
                self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        wanted = self._wanted.pop(sequence, None)
        if wanted is None:
            return
        if not wanted.placed:
            self._queue.remove(sequence)
            return
        for key in wanted.keys:
            self._shelf.unpin(key)
            if self._shelf.find(key) is None:
                self._encoders.drop(key)

    def _place_next(self) -> None:
        """Give rows to those that asked first, and let be encoded what is not there."""
        while self._queue:
            sequence = self._queue[0]
            wanted, request = self._wanted[sequence], sequence.request
            parts = request.media.parts
            new = self._shelf.take([(key, parts[wanted.parts[key]].tokens) for key in wanted.keys])
            if new is None:
                return
            self._queue.popleft()
            wanted.placed = True
            self.arrivals += 1
            self.found_again += len(wanted.keys) - len(new)
            for key in new:
                self._encoders.submit(Job(key, parts[wanted.parts[key]]))
            for key in wanted.keys:
                entry = self._shelf.find(key)
                if entry is not None and not entry.ready:
                    wanted.missing.add(key)

    def _take_in(self, encoded: Encoded) -> None:
        """Copy features to where steps find them; their shared memory is free again when that is done."""
        assert self._memory is not None
        first = 0
        for job in encoded.jobs:
            entry, rows = self._shelf.find(job.key), job.part.tokens
            if entry is not None and not entry.ready and entry.rows == rows:
                memory = self._memory[entry.start : entry.start + rows]
                if encoded.rows is not None:
                    memory.copy_(encoded.rows[first : first + rows], non_blocking=True)
                if self._ranks is not None:
                    self._ranks.broadcast_rows(memory)
                entry.ready = True
                for wanted in self._wanted.values():
                    wanted.missing.discard(job.key)
            first += rows
        self.arrivals += 1
        if self._device.type == "cuda":
            copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(self._device))
            self._copying.append((copied, encoded))
        else:
            encoded.release()

    def _release_copied(self) -> None:
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()[1].release()

    def _lost(self, failed: NotEncoded) -> Iterator[LostRequest]:
        """Everybody who waits for a part that cannot be encoded."""
        job = failed.job
        for sequence, wanted in list(self._wanted.items()):
            if job.key in wanted.missing:
                self._forget(sequence)
                yield LostRequest(sequence, f"{job.part.kind}: {failed.why}", failed.passing)
        entry = self._shelf.find(job.key)
        if entry is not None and not entry.ready:
            self._shelf.drop(job.key)


def _needed(media: PromptMedia, start: int) -> list[int]:
    """The numbers of the parts with tokens from `start` on."""
    first = int(np.searchsorted(media.places, start))
    return [number for number, end in enumerate(media.ends.tolist()) if end > first]


def _key(request: Request, media: PromptMedia, number: int) -> Hashable:
    return request.salt, media.digests[number]
