"""The requests that wait, in order, and what it takes to put one back exactly where it was."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import islice

from brim.engine.requests.sequence import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """A request that has left the queue, and where it stood."""

    sequence: Sequence
    behind: int  # how many stood behind it; preempted requests may have come to the front since
    passed: tuple[Sequence, ...]  # those that it passed


def join(queue: deque[Sequence], sequence: Sequence) -> None:
    """Behind all of its own priority or a higher one."""
    behind = 0
    for other in reversed(queue):
        if other.request.priority >= sequence.request.priority:
            break
        behind += 1
    queue.insert(len(queue) - behind, sequence)


def come_back(queue: deque[Sequence], sequence: Sequence) -> None:
    """Before all of its own priority or a lower one. Can be called again after an interrupt."""
    if sequence in queue:
        return
    ahead = 0
    for other in queue:
        if other.request.priority <= sequence.request.priority:
            break
        ahead += 1
    queue.insert(ahead, sequence)


def step_out(queue: deque[Sequence], sequence: Sequence) -> Departure:
    """Take a request out of the queue whose turn it is."""
    place = queue.index(sequence)
    del queue[place]
    return Departure(sequence, len(queue) - place, ())


def overtake(queue: deque[Sequence], sequence: Sequence) -> Departure:
    """Take a request out of the queue before its turn. Those before it have been passed once more."""
    passed = tuple(islice(queue, queue.index(sequence)))
    for one in passed:
        one.passed += 1
    return replace(step_out(queue, sequence), passed=passed)


def rejoin(queue: deque[Sequence], departure: Departure) -> None:
    """Undo a departure. Can be called again after an interrupt."""
    if departure.sequence in queue:
        return
    place = len(queue) - departure.behind
    while place and queue[place - 1].request.priority < departure.sequence.request.priority:
        place -= 1  # a request of a lower priority was preempted meanwhile
    queue.insert(place, departure.sequence)
    for one in departure.passed:
        one.passed -= 1
