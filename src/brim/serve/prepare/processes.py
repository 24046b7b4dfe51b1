"""Processes beside the server's, for work that would keep its interpreter; they end when it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any, TypeVar

Result = TypeVar("Result")


def processes(most: int = 1, niceness: int = 0) -> Executor:
    """Workers that start when they are first needed; nicer ones leave the CPU to those that are less so."""
    return ProcessPoolExecutor(
        most, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(niceness,)
    )


def limited(seconds: float, work: Callable[..., Result], *arguments: Any) -> Result:
    """In a worker: do it within so much CPU time. A process that takes more is killed, wherever a library is."""
    if multiprocessing.parent_process() is None or threading.current_thread() is not threading.main_thread():
        return work(*arguments)  # a thread of the server's own
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return work(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _begin(niceness: int) -> None:
    """In a worker: interrupts are the server's, and when the server is gone, nobody needs this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["OMP_NUM_THREADS"] = "1"  # there are several such processes
    os.nice(niceness)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
