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
        self._ended: deque[float] = deque(maxlen=_REMEMBERED)

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
        self.inside += answers
        try:
            yield
        finally:
            self.inside -= answers
            self._ended.extend([self._clock()] * answers)

    def wait_seconds(self, places: int) -> int:
        """Until so many more places are free, as far as the past tells."""
        if len(self._ended) < 2:
            return 1
        taken = max(self._clock() - self._ended[0], 1e-3)
        return max(1, min(_LONGEST_WAIT, ceil(places * taken / len(self._ended))))
