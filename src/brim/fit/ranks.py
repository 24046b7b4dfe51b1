"""Ranks agree on every part of a fit: the fewest tokens, the worst outcome, and failures on other ranks.

Every rank reports how its part ended before any continues; if one failed, all fail and name it. The exchange of
messages (`exchange`) has a timeout, so that no rank waits forever for one that was killed.

What it cannot do: end an operation of the engine itself in which another rank waits for one that has failed. Builds and
steps of a tensor-parallel engine must end the same way on all ranks, as those of `brim.engine` do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from brim.errors import DeviceError, DoesNotFit, OutOfMemory, first_line
from brim.records.fit import Attempt, AttemptOutcome

Exchange = Callable[[Any], list[Any]]  # one message from every rank, by rank

WAIT_SECONDS = 600.0  # for a rank that runs and does not respond; one that has exited is noticed at once
_LONGEST_REASON = 1000  # characters


@dataclass(frozen=True, slots=True)
class Failed:
    """The message of a rank that has failed."""

    reason: str
    does_not_fit: bool = False

    @classmethod
    def by(cls, error: BaseException) -> Failed:
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        return cls(reason, isinstance(error, DoesNotFit))


class _KnownToAll(Exception):
    """The failure of another rank on its way out: every rank has been told, so no other rank waits for it."""

    def __init__(self, error: DeviceError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Short:
    """The message of a rank that ran out of memory."""

    missing_bytes: int | None


@dataclass(frozen=True, slots=True)
class FitRanks:
    """The ranks of an engine, as a fit sees them."""

    rank: int
    exchange: Exchange

    def fewest(self, tokens: int) -> int:
        """The tokens that fit on every rank."""
        words: list[int] = self._words(tokens)
        return min(words)

    def largest(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Of each size, the largest of any rank."""
        return tuple(max(of_ranks) for of_ranks in zip(*self._words(sizes), strict=True))

    def all(self, mine: bool) -> bool:
        """Whether this is true on every rank."""
        return all(self._words(mine))

    def agree(self, mine: Any) -> bool:
        """Whether the value is the same on every rank."""
        return all(word == mine for word in self._words(mine))

    def worst(self, attempt: Attempt) -> Attempt:
        """Out of memory on one rank counts for all; the largest known shortfall is used."""
        failed = [one for one in self._words(attempt) if one.outcome is not AttemptOutcome.PROVEN]
        if not failed:
            return attempt
        known = [one.shortfall_bytes for one in failed if one.shortfall_bytes is not None]
        return Attempt(attempt.kv_tokens, AttemptOutcome.OUT_OF_MEMORY, max(known, default=None))

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """A part that must succeed on all ranks; if it fails on one, it raises on all."""
        try:
            yield
        except _KnownToAll as known:
            raise known.error from None
        except BaseException as error:
            with suppress(DeviceError):  # do not hide this rank's own error if the others no longer respond
                self.exchange(Failed.by(error))
            raise
        self._words(None, what)

    @contextmanager
    def fitting(self, what: str) -> Iterator[None]:
        """Inside `together`: a part that may run out of memory. If one rank does, it is out of memory on all."""
        mine: OutOfMemory | None = None
        try:
            yield
        except OutOfMemory as error:
            mine = error
        try:
            words = self._words(None if mine is None else Short(mine.missing_bytes), what)
        except DeviceError as error:
            raise _KnownToAll(error) from error
        if mine is not None:
            raise mine
        short = {rank: word.missing_bytes for rank, word in enumerate(words) if word is not None}
        if short:
            known = [size for size in short.values() if size is not None]
            raise OutOfMemory(f"{what}: out of memory on rank {min(short)}", missing_bytes=max(known, default=None))

    def _words(self, mine: Any, what: str = "fit") -> list[Any]:
        """The messages of all ranks; raises if one of them has failed."""
        words = self.exchange(mine)
        for rank, word in enumerate(words):
            if isinstance(word, Failed):
                kind = DoesNotFit if word.does_not_fit else DeviceError
                raise kind(f"{what}: rank {rank} failed ({word.reason}); the fit ends on all ranks")
        return words


def _only_this_rank(word: Any) -> list[Any]:
    return [word]


ONE_RANK = FitRanks(0, _only_this_rank)


def gathered(group: Any = None, seconds: float = WAIT_SECONDS) -> Exchange:
    """Messages between the ranks of a process group (None: all of them), each of which must call this."""
    return _Gathering(group, seconds).exchange


class _Gathering:
    """A gloo group for messages only: it uses no device memory, and is separate from the engine's collectives.

    A rank that gets no response leaves the group: its connections close, so that no other rank waits for it.
    """

    def __init__(self, group: Any, seconds: float) -> None:
        import torch.distributed as distributed

        self._group: Any = None
        members = distributed.get_process_group_ranks(group)
        with self._answered():
            self._group = distributed.new_group(members, timeout=timedelta(seconds=seconds), backend="gloo")

    def exchange(self, word: Any) -> list[Any]:
        import torch.distributed as distributed

        if self._group is None:
            raise DeviceError("a rank stopped responding earlier; the fit has ended on all ranks")
        words: list[Any] = [None] * distributed.get_world_size(self._group)
        with self._answered():
            distributed.all_gather_object(words, word, group=self._group)
        return words

    @contextmanager
    def _answered(self) -> Iterator[None]:
        import torch.distributed as distributed

        try:
            yield
        except RuntimeError as error:  # gloo's, and torch.distributed's own
            left, self._group = self._group, None
            if left is not None:
                distributed.destroy_process_group(left)
            raise DeviceError(f"a rank does not respond ({first_line(error)}); the fit ends on all ranks") from error
