"""A neighbour that takes all free memory of the GPU, again and again, in a process of its own.

    python benchmarks/thief.py [SEED] [keeps]

Makes its CUDA context, prints `ready`, and begins with the first line that it reads; every take and release after it is
counted. Ends when its input is closed, and prints what it did as JSON. The allocations are plain ones of the driver, so
that nothing is cached: what is released is free at once. With `keeps`, it takes what becomes free all the while, and
releases it at its end.
"""

from __future__ import annotations

import json
import random
import select
import subprocess
import sys
import time
from typing import Any

from driver_memory import Driver

_PAUSE_SECONDS = (0.02, 0.4)


def steal(seed: int) -> dict[str, Any]:
    driver, draw = Driver(), random.Random(seed)
    print("ready", flush=True)
    sys.stdin.readline()
    takes, most, held_seconds = 0, 0, 0.0
    while not _closed(0):
        held, taken = driver.take_all()
        began = time.perf_counter()
        takes, most = takes + 1, max(most, taken)
        over = _closed(draw.uniform(*_PAUSE_SECONDS))
        driver.release(held)
        held_seconds += time.perf_counter() - began
        if over or _closed(draw.uniform(*_PAUSE_SECONDS)):
            break
    return {"takes": takes, "most_bytes": most, "held_seconds": held_seconds}


def keep() -> dict[str, Any]:
    driver = Driver()
    print("ready", flush=True)
    sys.stdin.readline()
    held: list[int] = []
    takes, most, began = 0, 0, time.perf_counter()
    while not _closed(_PAUSE_SECONDS[0]):
        more, taken = driver.take_all()
        held += more
        takes, most = takes + bool(taken), most + taken
    driver.release(held)
    return {"takes": takes, "most_bytes": most, "held_seconds": time.perf_counter() - began}


def _closed(wait_seconds: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], wait_seconds)
    return bool(ready) and not sys.stdin.readline()


class Thief:
    """One of them, started and not stealing yet."""

    def __init__(self, seed: int = 0, *, keeps: bool = False) -> None:
        command = [sys.executable, __file__, str(seed), *(["keeps"] if keeps else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError("the neighbour could not start")

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        try:
            said, _ = self._process.communicate(timeout=60)
        finally:
            self._process.kill()
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found


if __name__ == "__main__":
    keeps = "keeps" in sys.argv
    print(json.dumps(keep() if keeps else steal(int(sys.argv[1]) if len(sys.argv) > 1 else 0)), flush=True)
