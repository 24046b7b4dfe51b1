"""The requests that wait, and what it takes to put one back exactly where it was.

Each share (a client of the server; one for all where nobody said otherwise) has a line of its own, in which a higher
priority comes first, and then who came first. Between the lines turns are taken (`brim.guard.shares`). Iterating gives
the order in which requests are to start; with one share, that is its line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from itertools import takewhile

from brim.engine.requests.sequence import Sequence
from brim.guard.shares import Account, Turns


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """A request that has left the queue, and where it stood."""

    sequence: Sequence
    behind: int  # how many stood behind it in its line; preempted requests may have come to the front since
    charged: int  # tokens
    passed: tuple[Sequence, ...] = ()  # those that it passed


class WaitingQueue:
    """All lines. The first of a line does not wait for its share's turn where `comes_first` says so."""

    def __init__(self, comes_first: Callable[[Sequence], bool] = lambda sequence: False) -> None:
        self.turns = Turns()
        self._comes_first = comes_first
        self._lines: dict[Account, deque[Sequence]] = {}  # of shares with something waiting

    def __len__(self) -> int:
        return sum(map(len, list(self._lines.values())))

    def __bool__(self) -> bool:
        return any(self._lines.values())

    def __iter__(self) -> Iterator[Sequence]:
        """In the order in which they are to start, if each computes its whole prompt."""
        if len(self._lines) > 1:
            return self._by_turns()
        return iter(next(iter(self._lines.values()), ()))

    def _by_turns(self) -> Iterator[Sequence]:
        """Of two shares that were served alike, the one that has been waiting longer comes first."""
        lines = [(account, iter(line)) for account, line in self._lines.items() if line]
        heads = [next(line) for _, line in lines]
        ranks = [
            (not self._comes_first(head), account.served, account.since, number)
            for number, (head, (account, _)) in enumerate(zip(heads, lines, strict=True))
        ]
        heapify(ranks)
        while ranks:
            _, served, since, number = ranks[0]
            head, (account, line) = heads[number], lines[number]
            yield head
            following = next(line, None)
            if following is None:
                heappop(ranks)
            else:
                heads[number] = following
                served += _tokens_to_compute(head) / account.share.weight
                heapreplace(ranks, (not self._comes_first(following), served, since, number))

    def copy(self) -> list[Sequence]:
        """Line by line; from any thread, since each line is copied whole."""
        return [sequence for line in list(self._lines.values()) for sequence in line.copy()]

    # -- coming and going ----------------------------------------------------------------------------------------

    def join(self, sequence: Sequence) -> None:
        """A new request, behind all of its line that have its priority or a higher one."""
        account = sequence.account = self.turns.enter(sequence.request.share)
        if account not in self._lines:
            self.turns.begins_to_wait(account)
        line, behind = self._line(sequence), 0
        for other in reversed(line):
            if other.request.priority >= sequence.request.priority:
                break
            behind += 1
        line.insert(len(line) - behind, sequence)

    def come_back(self, sequence: Sequence) -> None:
        """Before all of its line that have its priority or a lower one. Can be called again after an interrupt."""
        line, ahead = self._line(sequence), 0
        if sequence in line:
            return
        for other in line:
            if other.request.priority <= sequence.request.priority:
                break
            ahead += 1
        line.insert(ahead, sequence)

    def remove(self, sequence: Sequence) -> int:
        """Take a request out; how many stood behind it in its line."""
        assert sequence.account is not None
        line = self._lines[sequence.account]
        place = line.index(sequence)
        del line[place]
        if not line:
            del self._lines[sequence.account]
        return len(line) - place

    def step_out(self, sequence: Sequence, reused: int) -> Departure:
        """A request starts whose turn it is; so many of its tokens need not be computed."""
        assert sequence.account is not None
        tokens = _tokens_to_compute(sequence, reused)
        behind = self.remove(sequence)
        self.turns.start(sequence.account, tokens, self._lines)
        return Departure(sequence, behind, tokens)

    def overtake(self, sequence: Sequence, reused: int) -> Departure:
        """A request starts before its turn. Those before it have been passed once more."""
        passed = tuple(takewhile(lambda one: one is not sequence, self))
        for one in passed:
            one.passed += 1
        return replace(self.step_out(sequence, reused), passed=passed)

    def rejoin(self, departure: Departure) -> None:
        """Undo a departure. Can be called again after an interrupt."""
        sequence = departure.sequence
        line = self._line(sequence)
        if sequence in line:
            return
        place = len(line) - departure.behind
        while place and line[place - 1].request.priority < sequence.request.priority:
            place -= 1  # a request of a lower priority was preempted meanwhile
        line.insert(place, sequence)
        assert sequence.account is not None
        sequence.account.charge(-departure.charged)
        for one in departure.passed:
            one.passed -= 1

    def _line(self, sequence: Sequence) -> deque[Sequence]:
        assert sequence.account is not None
        return self._lines.setdefault(sequence.account, deque())

    def left(self, sequence: Sequence) -> None:
        """A request has ended, wherever it was."""
        assert sequence.account is not None
        self.turns.leave(sequence.account)

    # -- what else shares are charged for ------------------------------------------------------------------------

    def charge_decodes(self, decodes: Iterable[Sequence]) -> None:
        """Each has computed a token. A share that is the only one known owes nobody anything."""
        if len(self.turns.accounts) > 1:
            for sequence in decodes:
                assert sequence.account is not None
                sequence.account.charge(1)


def _tokens_to_compute(sequence: Sequence, reused: int = 0) -> int:
    """What a share is charged when a request starts. It does not pay for a preemption."""
    return 0 if sequence.preemptions else sequence.length - reused
