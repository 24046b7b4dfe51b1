"""Grammars tried in a process of their own before the server compiles them: some schemas take minutes, or crash.

A grammar gets a little CPU time first; one that needs more is tried again in the next lane, with more of it, up to all
that a grammar may take. So slow ones delay nobody else. The lanes of slow ones have short queues:
who finds one full, or has waited for seconds, is told to come again. What was refused is remembered, and what passes is
compiled for the engine, in a thread.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from math import ceil
from typing import TYPE_CHECKING

from brim.engine.requests.grammar import Grammar
from brim.errors import DeviceError, InvalidRequest
from brim.serve.problems import SERVER, Problem
from brim.units import MIB, format_bytes

if TYPE_CHECKING:
    from brim.engine.front.grammars import Grammars

LANES = ((0.02, 256), (0.1, 16), (1.0, 3))  # seconds of CPU time for a grammar, and how many may wait
MOST_SECONDS = LANES[-1][0]
MOST_BYTES = 64 * MIB
_PROCESS = "brim.serve.prepare.trial_process"
_TRIES = 2
_NICENESS = 10  # of trials behind the first lane
_REMEMBERED = 256  # refusals
_WAIT_SECONDS = 8.0  # for all lanes together


class Trials:
    """The way of a client's grammar to the engine."""

    def __init__(self, grammars: Grammars, wait_seconds: float = _WAIT_SECONDS) -> None:
        self._grammars = grammars
        self._wait_seconds = wait_seconds
        self._lanes = [_Lane(grammars, seconds, queue) for seconds, queue in LANES]
        self._refused: OrderedDict[bytes, str] = OrderedDict()  # why, by digest

    def prepare(self) -> None:
        """Begin to start the first lane's process, where a grammar could be followed at all."""
        self._lanes[0].prepare()

    async def check(self, grammar: Grammar) -> None:
        """Compile it, or refuse it."""
        if self._grammars.knows(grammar):
            return
        digest = blake2b(f"{grammar.kind} {grammar.text}".encode(errors="surrogatepass")).digest()
        if digest in self._refused:
            raise InvalidRequest(self._refused[digest])
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._compile(grammar)
        except TimeoutError:
            said = f"its schema was not tried within {self._wait_seconds:g} s, for others that take long"
            raise _later(f"{said}; try again later", "grammars_busy", ceil(self._wait_seconds)) from None
        except InvalidRequest as refused:
            self._refused[digest] = str(refused)
            if len(self._refused) > _REMEMBERED:
                self._refused.popitem(last=False)
            raise

    async def _compile(self, grammar: Grammar) -> None:
        for lane in self._lanes:
            if await lane.compiled(grammar):
                return
        raise InvalidRequest(
            f"grammar: it takes more than {MOST_SECONDS:g} s or {format_bytes(MOST_BYTES)} to compile; make it smaller "
            "(multipleOf, allOf and bounded repeats inside each other take most)"
        )

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


class _Lane:
    """One thread and one process: a grammar after the other."""

    def __init__(self, grammars: Grammars, seconds: float, queue: int) -> None:
        self._grammars = grammars
        self._seconds = seconds
        self._queue = queue
        self._inside = 0  # grammars that are tried or wait; in the event loop's thread
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-grammars")
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def prepare(self) -> None:
        self._thread.submit(self._prepare)

    async def compiled(self, grammar: Grammar) -> bool:
        """Whether it is compiled now; False: it takes too much here."""
        if self._closed:
            raise DeviceError("the server has ended")
        if self._inside > self._queue:
            wait = ceil(self._inside * self._seconds)
            said = f"{self._inside} schemas that take long to compile are before this one, the most that may"
            raise _later(f"{said}; try again in {wait} s", "grammars_busy", wait)
        self._inside += 1
        trying = self._thread.submit(self._compiled, grammar)
        trying.add_done_callback(partial(self._ended, asyncio.get_running_loop()))
        return await asyncio.wrap_future(trying)

    def _ended(self, loop: asyncio.AbstractEventLoop, _: Future[bool]) -> None:
        """It is done, wherever its client is now."""

        def leave() -> None:
            self._inside -= 1

        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(leave)

    def close(self) -> None:
        self._closed = True
        if self._process is not None:
            self._process.kill()
        self._thread.shutdown(cancel_futures=True)
        self._end()

    # -- in the thread -------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        with suppress(InvalidRequest):
            self._started()

    def _compiled(self, grammar: Grammar) -> bool:
        if self._grammars.knows(grammar):
            return True
        verdict = self._tried(grammar)
        if verdict["died"]:
            return False
        if verdict["problem"]:
            raise InvalidRequest(verdict["problem"])
        self._grammars.check(grammar)
        return True

    def _tried(self, grammar: Grammar) -> dict[str, str]:
        order = {"kind": grammar.kind, "text": grammar.text, "seconds": self._seconds, "bytes": MOST_BYTES}
        order["niceness"] = 0 if self._seconds == LANES[0][0] else _NICENESS
        for _ in range(_TRIES):
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(OSError):
                process.stdin.write(json.dumps(order) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
                if answer:
                    verdict: dict[str, str] = json.loads(answer)
                    return verdict
            self._end()  # it has died itself, and not a trial inside of it
        raise _later(
            "the process that tries schemas has died twice on this request; try again later", "grammars_failed", 1
        )

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        self._grammars.read()  # the process would die of a vocabulary that cannot be read
        vocabulary = json.dumps(asdict(self._grammars.vocabulary))
        if self._closed:
            raise DeviceError("the server has ended")
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-m", _PROCESS], stdin=pipe, stdout=pipe, text=True)
        self._process = process
        assert process.stdin is not None
        with suppress(OSError):  # the first trial finds out that it has died
            process.stdin.write(vocabulary + "\n")
            process.stdin.flush()
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _later(message: str, code: str, seconds: int) -> Problem:
    return Problem(503, message, kind=SERVER, code=code, retry_after=seconds)
