"""Inputs that wait, and which of them make the next batch.

In: requests with the lengths of their inputs, and whose they are. Out: batches of inputs, whose padded size (inputs ×
the longest of them) is within a bound; an input that is longer than the bound is a batch of its own.

The first input of a batch is that of the client whose turn it is (`brim.guard.shares`), and of its requests the one
that has waited longest since its last. So a request of 2,048 inputs and one of a single input take turns, whoever sent
them. The others are taken in turns too, but only those at least half as long as the first: less than half of a batch is
padding. Knows nothing of tokens and vectors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from brim.guard.shares import Account, ClientShare, Turns

InputKey = tuple[str, int]  # the request, and which of its inputs


@dataclass(frozen=True, slots=True)
class WaitingInput:
    request_id: str
    index: int
    length: int

    @property
    def key(self) -> InputKey:
        return self.request_id, self.index


@dataclass(slots=True, eq=False)
class _QueuedInputs:
    id: str
    account: Account
    left: list[WaitingInput]  # the shortest first

    def longest(self, most: int | None = None, least: int = 0, only: Collection[InputKey] | None = None) -> int | None:
        """The place of its longest input within these bounds."""
        end = len(self.left) if most is None else bisect_right(self.left, most, key=lambda one: one.length)
        for place in range(end - 1, -1, -1):
            one = self.left[place]
            if one.length < least:
                return None
            if only is None or one.key in only:
                return place
        return None


@dataclass(slots=True, eq=False)
class InputQueue:
    """In the engine's thread alone."""

    most_rows: int
    _requests: dict[str, _QueuedInputs] = field(default_factory=dict)  # with inputs that wait, or are in a batch
    _lines: dict[str, deque[_QueuedInputs]] = field(
        default_factory=dict
    )  # by share: those with inputs that wait, in turns
    _turns: Turns = field(default_factory=Turns)

    def __len__(self) -> int:
        return sum(len(one.left) for one in self._requests.values())

    def add(self, request_id: str, lengths: Iterable[int], share: ClientShare) -> None:
        found = [WaitingInput(request_id, index, length) for index, length in enumerate(lengths)]
        request = _QueuedInputs(request_id, self._turns.enter(share), sorted(found, key=lambda one: one.length))
        self._requests[request_id] = request
        self._line_up(request)

    def _line_up(self, request: _QueuedInputs) -> None:
        name = request.account.share.name
        if name not in self._lines:
            self._lines[name] = deque()
            self._turns.begins_to_wait(request.account)
        self._lines[name].append(request)

    def remove(self, request_id: str) -> None:
        """A request has ended, whatever of it still waits."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._drop_from_line(request)
            self._turns.leave(request.account)

    def drop(self, key: InputKey) -> None:
        """One input will not be computed."""
        request = self._requests[key[0]]
        request.left = [one for one in request.left if one.key != key]
        if not request.left:
            self._drop_from_line(request)

    def _drop_from_line(self, request: _QueuedInputs) -> None:
        name = request.account.share.name
        line = self._lines.get(name)
        if line is not None and request in line:
            line.remove(request)
            if not line:
                del self._lines[name]

    def put_back(self, batch: Iterable[WaitingInput]) -> None:
        """A batch could not be computed: its inputs wait again, and nobody was served."""
        for one in batch:
            request = self._requests.get(one.request_id)
            if request is None:
                continue  # cancelled meanwhile
            request.account.charge(-one.length)
            if not request.left:
                self._line_up(request)
            request.left.insert(bisect_right(request.left, one.length, key=lambda other: other.length), one)

    def waiting(self, keys: Collection[InputKey]) -> tuple[WaitingInput, ...]:
        """Those of these inputs that wait."""
        ids = dict.fromkeys(request_id for request_id, _ in keys)
        found = (self._requests[one] for one in ids if one in self._requests)
        return tuple(one for request in found for one in request.left if one.key in keys)

    def take(self, tokens: int, only: Collection[InputKey] | None = None) -> tuple[WaitingInput, ...]:
        """The next batch of at most so many tokens, padding included; `only` some inputs where a batch is retried."""
        batch: list[WaitingInput] = []
        most, least = None, 0
        unsuitable: set[str] = set()
        while len(batch) < self.most_rows and (not batch or (len(batch) + 1) * batch[0].length <= tokens):
            name = self._next_share(unsuitable)
            if name is None:
                break
            one = self._taken(name, most, least, only)
            if one is None:
                unsuitable.add(name)
                continue
            if not batch:
                most, least = one.length, (one.length + 1) // 2
            batch.append(one)
        return tuple(batch)

    def _next_share(self, without: Collection[str]) -> str | None:
        names = [name for name in self._lines if name not in without]
        return min(names, key=self._served, default=None)

    def _served(self, name: str) -> tuple[float, int]:
        account = self._lines[name][0].account
        return account.served, account.since

    def _taken(self, name: str, most: int | None, least: int, only: Collection[InputKey] | None) -> WaitingInput | None:
        """An input of the first request in turn that has one within these bounds."""
        line = self._lines[name]
        for request in tuple(line):
            place = request.longest(most, least, only)
            if place is None:
                continue
            one = request.left.pop(place)
            line.remove(request)
            if request.left:
                line.append(request)  # the others of this share come first
            self._turns.start(request.account, one.length, self._accounts())
            if not line:
                del self._lines[name]
            return one
        return None

    def _accounts(self) -> Iterator[Account]:
        return (line[0].account for line in self._lines.values() if line)
