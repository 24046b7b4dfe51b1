"""How many answers may be inside at once: those the engine runs, and a bounded queue behind them.

Who finds it full is told when a place is likely to be free, from how fast answers have ended lately.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil

from brim.serve.problems import Problem, invalid

_REMEMBERED = 128  # answers whose end the forecast is made of
_LONGEST_WAIT = 120  # seconds


class Gate:
    """Counts answers, in the event loop's thread alone."""

    def __init__(self, batch: int, queue: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.places = batch + queue
        self.inside = 0
        self.refused = 0
        self._clock = clock
        self._busy_before = 0.0  # seconds with somebody inside, up to the last time that it became empty
        self._busy_since = 0.0  # by the clock; where somebody is inside
        self._ended: deque[float] = deque()  # busy seconds at the end of each answer
        self._remembered_from = 0.0  # busy seconds

    @contextmanager
    def entered(self, answers: int) -> Iterator[None]:
        """Take a place for each answer, or refuse."""
        if answers > self.places:
            raise invalid("n", f"{answers} answers were asked for at once, and the server holds {self.places}")
        missing = self.inside + answers - self.places
        if missing > 0:
            self.refused += 1
            wait = self.wait_seconds(missing)
            raise Problem(
                429,
                f"the queue is full: {self.inside} answers are running or waiting, of at most {self.places}; "
                f"try again in {wait} s",
                kind="rate_limit_error",
                code="queue_full",
                retry_after=wait,
            )
        if not self.inside:
            self._busy_since = self._clock()
        self.inside += answers
        try:
            yield
            self._remember(answers)
        finally:
            busy = self._busy_seconds()
            self.inside -= answers
            if not self.inside:
                self._busy_before = busy

    def wait_seconds(self, places: int) -> int:
        """Until so many more places are free, as far as the past tells."""
        if len(self._ended) < 2:
            return 1
        taken = self._busy_seconds() - self._remembered_from
        return max(1, min(_LONGEST_WAIT, ceil(places * taken / len(self._ended))))

    def _remember(self, answers: int) -> None:
        """Answers that were given; requests that were refused inside say nothing of how long one takes."""
        self._ended.extend([self._busy_seconds()] * answers)
        while len(self._ended) > _REMEMBERED:
            self._remembered_from = self._ended.popleft()

    def _busy_seconds(self) -> float:
        """An hour without requests is not an hour that an answer took."""
        return self._busy_before + (self._clock() - self._busy_since if self.inside else 0.0)
