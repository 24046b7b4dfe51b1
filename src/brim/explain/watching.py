"""A server watched from outside: what its `/metrics`, NVML and its log say, once a second, as a recording.

In: an address, and where they are known a process and a log. Out: notes, and one entry a second in the place of steps:
how many requests run and wait, how full the pool is, and what the device has free. Of a line of the log it is recorded
what a reader found in it about memory, and the message of a refusal; no text of requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from brim.errors import BrimError
from brim.explain.findings import Findings
from brim.explain.reading import shown_to_readers
from brim.monitor.asking import ask
from brim.monitor.engines import PoolUse, figures_from
from brim.probes.host import available_host_bytes
from brim.probes.usage import gpu_usage, program_name
from brim.record.entries import Note, NoteKind, StartEntry, StepEntry, StepState
from brim.record.holders import DeviceHolder, DeviceUse, HolderNotes
from brim.record.writer import RecordingWriter

EVERY_SECONDS = 1.0
_OK = 200
_EMPTY_POOL = PoolUse(0, 0, 1_000_000)
_LOG_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class ServerLook:
    """A server at one moment, by its metrics."""

    running: int
    waiting: int
    held: int  # of the pool, in its own blocks or in parts per million
    cached: int
    free: int
    preemptions: int


def look_from(text: str) -> ServerLook:
    """From the text of `/metrics`; what it does not have is 0."""
    found = figures_from(text)
    pool = found.pool or _EMPTY_POOL
    return ServerLook(
        running=found.running or 0,
        waiting=found.waiting or 0,
        held=pool.held,
        cached=pool.cached,
        free=pool.free,
        preemptions=found.preemptions or 0,
    )


class ServerRecorder:
    """Writes what it sees into a recording, a look at a time."""

    def __init__(
        self,
        writer: RecordingWriter,
        metrics: Callable[[], str],
        *,
        gpu: str | None = None,
        pid: int | None = None,
        log: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._writer, self._metrics, self._gpu, self._pid, self._clock = writer, metrics, gpu, pid, clock
        self._holders = HolderNotes()
        self._log: BinaryIO | None = None if log is None else log.open("rb")
        self._rest = b""
        self._answers = True
        self._preemptions = -1

    def start(self, engine: str, model: str, total_bytes: int) -> None:
        self._writer.start(StartEntry(engine, "", model, self._gpu or "", total_bytes, 0, 0))

    def look(self) -> bool:
        """One moment; whether the server answers."""
        now = self._clock()
        self._read_log(now)
        free = self._look_at_device(now)
        own = _resident_bytes(self._pid) if self._pid is not None else 0
        self._writer.note(Note(now, NoteKind.HOST, 1, 0, available_host_bytes(), own))
        try:
            seen = look_from(self._metrics())
        except OSError as error:
            if self._answers:
                self._writer.note(Note(now, NoteKind.STATE, text=f"the server does not answer: {error}"[:180]))
            self._answers = False
            return False
        if not self._answers:
            self._writer.note(Note(now, NoteKind.STATE, text="the server answers again"))
        self._answers = True
        self._note_preemptions(now, seen.preemptions)
        self._writer.step(
            StepEntry(
                now,
                StepState.LAUNCHED,
                decodes=seen.running,
                running=seen.running,
                waiting=seen.waiting,
                blocks_held=seen.held,
                blocks_cached=seen.cached,
                blocks_free=seen.free,
                preemptions=seen.preemptions,
                free_bytes=free,
            )
        )
        return True

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        self._writer.close()

    def _note_preemptions(self, now: float, count: int) -> None:
        grown = count - self._preemptions
        if self._preemptions >= 0 and grown > 0:
            text = f"{grown:,} requests were preempted"
            self._writer.note(Note(now, NoteKind.PREEMPTED, grown, text=text))
        self._preemptions = count

    def _look_at_device(self, now: float) -> int:
        """What is free, with notes of who holds what; 0 where NVML cannot be asked."""
        if self._gpu is None:
            return 0
        try:
            usage = gpu_usage(self._gpu)
        except BrimError:
            return 0
        holders = tuple(DeviceHolder(pid, size, 0, program_name(pid)) for pid, size in usage.by_pid.items())
        for note in self._holders.notes(now, DeviceUse(usage.total_bytes, usage.free_bytes, holders, self._pid or 0)):
            self._writer.note(note)
        return usage.free_bytes

    def _read_log(self, now: float) -> None:
        """What the log has got since; lines in which a reader finds something."""
        if self._log is None:
            return
        *lines, rest = (self._rest + self._log.read(_LOG_PIECE)).split(b"\n")
        self._rest = rest[-_LOG_PIECE:]
        for raw in lines:
            found = Findings()
            shown_to_readers(raw, found)
            incident = found.incident()
            for refusal in incident.refusals:
                self._writer.note(Note(now, NoteKind.OUT_OF_MEMORY, text=refusal.evidence.text))
            for seen in incident.seen:
                self._writer.note(Note(now, NoteKind.LOG, text=str(seen.sign)))


def metrics_of(url: str, key: str | None = None) -> str:
    """The text of `/metrics`; `OSError` where nothing answers, or something else."""
    answer = ask(f"{url}/metrics", key)
    if answer.status != _OK:
        raise OSError(f"{url}/metrics: it answered {answer.status}")
    return answer.body.decode("utf-8", "replace")


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
