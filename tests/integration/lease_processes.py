"""Processes that lease: a template process that forks holders and sizers, which log what they do.

Run as a program. Each line on standard input is a process to start, as JSON; its pid is printed. Forked, because an
interpreter for each would take most of the time. A log has a line for each event, with the boot clock's time, and is
written in one piece: what a killed process has logged is whole.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import BrimError
from brim.records.lease import Expected, SizeWish
from brim.records.memory import MemoryReading
from brim.reserve.devices import Budget
from brim.reserve.hold import hold
from brim.reserve.processes import boot_clock
from brim.reserve.sizing import sizing


@dataclass(frozen=True, slots=True)
class Actor:
    """A process of a start-up. Times are in seconds."""

    number: int
    folder: str  # of the ledger
    log: str
    total_bytes: int
    sizes: bool
    delay: float  # before it comes
    prepare: float  # between promise and hold
    stay: float  # while it holds
    promised_bytes: int = 0  # of a holder
    held_part: float = 1.0  # of what was promised
    fraction: float | None = None  # of a sizer
    expected: int = 0
    wait_seconds: float = 30.0

    @property
    def role(self) -> str:
        return f"{'sizer' if self.sizes else 'holder'}-{self.number}"

    @property
    def device(self) -> Budget:
        return Budget("cpu:startup", self.total_bytes)


def act(actor: Actor) -> None:
    log = os.open(actor.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(event: str, size: int = 0, at: float | None = None) -> None:
        line = {"number": actor.number, "event": event, "bytes": size, "at": boot_clock() if at is None else at}
        os.write(log, (json.dumps(line) + "\n").encode())

    time.sleep(actor.delay)
    try:
        (_size if actor.sizes else _hold)(actor, say)
        say("done")
    except BrimError as error:
        say(f"{type(error).__name__}: {error}")


def _hold(actor: Actor, say: Any) -> None:
    where = f"{actor.device.key}:{actor.total_bytes}"
    with hold(
        gpu=where, bytes=actor.promised_bytes, role=actor.role, starting=True, folder=Path(actor.folder)
    ) as lease:
        say("promised", actor.promised_bytes)
        time.sleep(actor.prepare)
        held = int(actor.promised_bytes * actor.held_part)
        say("holding", held)
        lease.hold(held)
        time.sleep(actor.stay)
        say("freed")


def _size(actor: Actor, say: Any) -> None:
    with sizing(
        actor.device,
        role=actor.role,
        share=SizeWish(fraction=actor.fraction),
        expected=Expected(actor.expected),
        wait_seconds=actor.wait_seconds,
        folder=Path(actor.folder),
    ) as sizer:
        say("decided", at=sizer.lease.heartbeat_seconds)
        say("promised", sizer.part.promised_bytes)
        time.sleep(actor.prepare)
        held = int(sizer.part.promised_bytes * actor.held_part)
        say("holding", held)
        sizer.hold(MemoryReading(actor.total_bytes, 0, held, held, held, held, 0))
        time.sleep(actor.stay)
        say("freed")


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                act(Actor(**json.loads(line)))
            finally:
                os._exit(0)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
