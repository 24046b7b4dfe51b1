"""Processes that share a queue of jobs of one kind, so that no kind of work waits for another.

A job goes to a process that is free. While jobs wait, more processes are started, up to a number; a job does not wait
for those to load if another is free before. A process that dies is replaced, and its job is given to another one once.
A job that takes more CPU time than one may have ends its process, and is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any, TypeVar

from brim.errors import DeviceError, InvalidRequest
from brim.serve.prepare.processes import limited
from brim.serve.problems import SERVER, Problem

Result = TypeVar("Result")
_TRIES = 2
_REMEMBERED = 32  # jobs that a forecast is made of
_LONGEST_WAIT = 120  # seconds
_ENDED = "the server has ended"


class Lane:
    """Used in the event loop's thread alone."""

    def __init__(
        self,
        what: str,  # the work, for messages: "images and audio"
        new_process: Callable[[], Executor],
        load: Callable[[], object],  # in a process, before its first job
        *,
        most: int,
        queue: int,
        seconds: float,  # of CPU time for a job
    ) -> None:
        self._what = what
        self._new_process = new_process
        self._load = load
        self._most = most
        self._queue = queue
        self._seconds = seconds
        self._started: set[Executor] = set()
        self._free: list[Executor] = []
        self._waiting: deque[asyncio.Future[Executor]] = deque()
        self._took: deque[float] = deque(maxlen=_REMEMBERED)
        self._closed = False

    async def ready(self) -> None:
        """Wait until a process has loaded what it needs."""
        await self.run(self._load)

    def start(self) -> None:
        """Begin to start a process, where none is."""
        if not self._started:
            self._start()

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do it in a process. Where too many wait already, it is refused."""
        died = 0
        while died < _TRIES:
            try:
                process = await self._process()
            except BrokenProcessPool:  # while it was loading
                died += 1
                continue
            began = time.monotonic()
            try:
                job = process.submit(limited, self._seconds, work, *arguments)
            except BrokenProcessPool:  # it had died before, of something else
                self._lost(process)
                continue
            job.add_done_callback(partial(self._ended, asyncio.get_running_loop(), process, self._lost))
            try:
                found = await asyncio.wrap_future(job)
            except BrokenProcessPool:
                self._check_time(time.monotonic() - began)
                died += 1
                continue
            self._took.append(time.monotonic() - began)
            return found
        raise Problem(
            503,
            f"the process that prepares {self._what} has died twice on this request; try again later",
            kind=SERVER,
            code="preparation_failed",
            retry_after=1,
        )

    def close(self) -> None:
        self._closed = True
        for process in self._started:
            process.shutdown(wait=False, cancel_futures=True)
        self._started.clear()
        self._free.clear()
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(DeviceError(_ENDED))

    async def _process(self) -> Executor:
        """One that is free, when it is this job's turn."""
        if self._closed:
            raise DeviceError(_ENDED)
        if self._free:
            return self._free.pop()
        if len(self._waiting) >= self._queue:
            raise self._busy()
        if len(self._started) < self._most:
            self._start()
        turn: asyncio.Future[Executor] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if turn in self._waiting:
                    self._waiting.remove(turn)
            elif turn.exception() is None:
                self._give(turn.result())
            raise

    def _busy(self) -> Problem:
        each = sum(self._took) / len(self._took) if self._took else 1.0
        wait = max(1, min(_LONGEST_WAIT, ceil(len(self._waiting) * each / self._most)))
        return Problem(
            503,
            f"{len(self._waiting)} requests wait for their {self._what} to be prepared, the most that may; "
            f"try again in {wait} s",
            kind=SERVER,
            code="preparation_busy",
            retry_after=wait,
        )

    def _check_time(self, seconds: float) -> None:
        if seconds >= self._seconds:
            raise InvalidRequest(
                f"the {self._what} of this request take more than the {self._seconds:g} s of CPU time that they may; "
                "send less"
            )

    def _start(self) -> None:
        process = self._new_process()
        self._started.add(process)
        loading = process.submit(self._load)
        loading.add_done_callback(partial(self._ended, asyncio.get_running_loop(), process, self._not_loaded))

    def _ended(
        self, loop: asyncio.AbstractEventLoop, process: Executor, died: Callable[[Executor], None], job: Future[Any]
    ) -> None:
        """In a thread of the executor: a job is done, wherever its client is now."""
        broken = False
        with suppress(CancelledError):
            broken = isinstance(job.exception(), BrokenProcessPool)
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(died if broken else self._give, process)

    def _give(self, process: Executor) -> None:
        """To the job that waits longest."""
        if self._closed:
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(process)
                return
        self._free.append(process)

    def _lost(self, process: Executor) -> None:
        """A process has died; another one is started for those who wait."""
        self._forget(process)
        if self._waiting and len(self._started) < self._most and not self._closed:
            self._start()

    def _not_loaded(self, process: Executor) -> None:
        """A process has died while it was loading. The job that waits longest is told: it must not go on for ever."""
        self._forget(process)
        turn = next((one for one in self._waiting if not one.done()), None)
        if turn is not None:
            self._waiting.remove(turn)
            turn.set_exception(BrokenProcessPool("it died while it was loading"))

    def _forget(self, process: Executor) -> None:
        self._started.discard(process)
        if process in self._free:
            self._free.remove(process)
        process.shutdown(wait=False)
