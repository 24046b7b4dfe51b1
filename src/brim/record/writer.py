"""Writes a recording: a bounded ring in a memory-mapped file.

In: steps and notes. Out: a file that a reader understands at any moment, also after a SIGKILL: what was written into
the mapping is the kernel's, and is there when the process is not. A machine that loses power may lose the last seconds.

Blocks of the disk are taken when the file is made, so that a full disk refuses then (`OSError`) and does not end the
process in the middle of a step. File systems that copy on write (btrfs, ZFS) may still do so.

One process writes a file. Another one that wants the same is refused, and one that comes after moves what it finds to
FILE.1, so that a server that is started again by its supervisor does not overwrite what is to be explained.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from brim.errors import InvalidRequest
from brim.record.entries import Note, NoteKind, StartEntry, StepEntry, StepState
from brim.record.layout import (
    MAGIC,
    OUTCOME_BYTES,
    OUTCOME_OFFSET,
    STEP_BYTES,
    FileHeader,
    pack_header,
    pack_note,
    pack_outcome,
    pack_start,
    pack_step,
)

KEPT = 8  # recordings in a folder, and generations of a file
SUFFIX = ".brimrec"
_LOCKS: weakref.WeakSet[_Lock] = weakref.WeakSet()  # a forked child must not keep them


class RecordingInUse(InvalidRequest):
    """Another process is writing this recording."""


class _Lock:
    """Held as long as its writer: on a descriptor of its own, since a mapping keeps a copy of the one that it is of."""

    def __init__(self, path: Path, flags: int) -> None:
        self.descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.descriptor)
            raise RecordingInUse(f"record '{path}': another process is writing it; name another file") from None
        _LOCKS.add(self)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _leave_locks() -> None:
    for lock in list(_LOCKS):
        with suppress(OSError):
            lock.close()


os.register_at_fork(after_in_child=_leave_locks)


class RecordingWriter:
    """Writes one file, from any thread; steps from one thread at a time."""

    def __init__(self, path: Path, header: FileHeader, clock: Callable[[], float] = time.time) -> None:
        """The file is new, and made whole or not at all."""
        self.path = path
        self._clock = clock
        self._steps, self._notes = header.steps, header.notes
        self._at = 0  # the slot of the last step
        self._step_number = self._note_number = self._start_number = 0
        self._guard = threading.Lock()  # of notes and the start
        self._lock = _Lock(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(self._lock.descriptor, 0, header.file_bytes)
            descriptor = os.open(path, os.O_RDWR)
            try:
                self._map: mmap.mmap = mmap.mmap(descriptor, header.file_bytes)
            finally:
                os.close(descriptor)
        except BaseException:
            self._lock.close()
            path.unlink(missing_ok=True)
            raise
        packed = pack_header(header)
        self._map[: len(packed)] = packed

    def step(self, entry: StepEntry) -> None:
        """Write a step that begins."""
        self._step_number += 1
        self._at = place = self._steps.slot(self._step_number)
        self._map[place : place + STEP_BYTES] = pack_step(self._step_number, entry)

    def outcome(self, state: StepState, duration_us: int) -> None:
        """How the last step went."""
        place = self._at + OUTCOME_OFFSET
        self._map[place : place + OUTCOME_BYTES] = pack_outcome(state, duration_us)

    def note(self, note: Note) -> None:
        with self._guard:
            self._note_number += 1
            packed = pack_note(self._note_number, note)
            place = self._notes.slot(self._note_number)
            self._map[place : place + len(packed)] = packed

    def tell(self, kind: NoteKind, text: str = "", *, count: int = 1, first: int = 0) -> None:
        """A note of this moment."""
        self.note(Note(self._clock(), kind, count, first, text=text))

    def start(self, entry: StartEntry) -> None:
        """The ledger; a later one takes its place."""
        with self._guard:
            self._start_number += 1
            place, packed = pack_start(self._start_number, entry)
            self._map[place : place + len(packed)] = packed
        self.tell(NoteKind.STARTED, f"{entry.engine} {entry.version}", first=entry.kv_tokens)

    def close(self) -> None:
        """It ended in order. Calls after this are errors of the caller."""
        self.tell(NoteKind.STOPPED)
        self._map.close()
        self._lock.close()


def open_recording(path: Path, *, clock: Callable[[], float] = time.time) -> RecordingWriter:
    """A new recording in that file; an older one is moved to FILE.1, and others on."""
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _move_on(path)
        return RecordingWriter(path, FileHeader(os.getpid(), clock()), clock)
    except FileExistsError:
        raise RecordingInUse(f"record '{path}': another process is writing it; name another file") from None
    except OSError as error:
        raise InvalidRequest(
            f"record '{path}': cannot be written ({error.strerror or error}); name a file in a folder with room for "
            "13 MiB, or --record off"
        ) from None


def open_in_folder(folder: Path, name: str, *, clock: Callable[[], float] = time.time) -> RecordingWriter:
    """A recording of this process among those of others; of those that nobody writes, the last few are kept."""
    written = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock()))
    made = open_recording(folder / f"{name}-{written}-{os.getpid()}{SUFFIX}", clock=clock)
    _forget_old(folder, made.path)
    return made


def _forget_old(folder: Path, own: Path) -> None:
    found = sorted(folder.glob(f"*{SUFFIX}"), key=_changed, reverse=True)
    for path in [one for one in found if one != own][KEPT - 1 :]:
        with suppress(OSError, RecordingInUse):  # another process removes it, or writes it
            _Lock(path, os.O_RDWR).close()
            path.unlink()


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _move_on(path: Path) -> None:
    """FILE to FILE.1, FILE.1 to FILE.2, …; the last is overwritten. What is no recording is not touched."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise InvalidRequest(f"record '{path}': there is a file that is no recording; name another file")
    lock = _Lock(path, os.O_RDWR)
    try:
        for number in range(KEPT - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
    finally:
        lock.close()
