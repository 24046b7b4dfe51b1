"""What processes of ranks tell a test, through a pipe each. No process outlives the listening."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any


def listen(
    processes: Sequence[Any],
    ends: dict[Any, int],
    seconds: float,
    hear: Callable[[int, Any], None],
    *,
    enough: Callable[[], bool] = lambda: False,
    gone: Callable[[int], None] = lambda rank: None,
) -> None:
    """Hand on what comes through `ends` (a pipe's end: its rank), until it is enough, all are gone, or time is up."""
    left = dict(ends)
    over = time.monotonic() + seconds
    try:
        while left and not enough() and time.monotonic() < over:
            ready: list[Any] = wait(list(left), timeout=over - time.monotonic())
            for end in ready:
                try:
                    said = end.recv()
                except EOFError:
                    gone(left.pop(end))
                else:
                    hear(left[end], said)
    finally:
        for process in processes:
            process.kill()
            process.join()
