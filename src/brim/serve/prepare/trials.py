"""Grammars tried in a process of their own before the server compiles them: some schemas take minutes, or crash.

A grammar gets a little CPU time first; one that needs more is tried again in a second lane, with all that a grammar may
take. So whoever sends slow ones keeps nobody else waiting. What passes is compiled for the engine, in a thread.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from brim.engine.requests.grammar import Grammar
from brim.errors import DeviceError, InvalidRequest
from brim.units import MIB, format_bytes

if TYPE_CHECKING:
    from brim.engine.front.grammars import Grammars

QUICK_SECONDS, MOST_SECONDS = 0.1, 1.0  # of CPU time
MOST_BYTES = 64 * MIB
_PROCESS = "brim.serve.prepare.trial_process"
_TRIES = 2


class Trials:
    """The way of a client's grammar to the engine."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._lanes = [_Lane(grammars, seconds) for seconds in (QUICK_SECONDS, MOST_SECONDS)]

    def prepare(self) -> None:
        """Begin to start the first lane's process, where a grammar could be followed at all."""
        self._lanes[0].prepare()

    async def check(self, grammar: Grammar) -> None:
        """Compile it, or refuse it."""
        if self._grammars.knows(grammar):
            return
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

    def __init__(self, grammars: Grammars, seconds: float) -> None:
        self._grammars = grammars
        self._seconds = seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-grammars")
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def prepare(self) -> None:
        self._thread.submit(self._prepare)

    async def compiled(self, grammar: Grammar) -> bool:
        """Whether it is compiled now; False: it takes too much here."""
        if self._closed:
            raise DeviceError("the server has ended")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._compiled, grammar)

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
        raise DeviceError("the process that tries grammars has died twice on this request")

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
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
