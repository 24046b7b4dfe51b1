"""A ledger while it is locked: its leases, read and swept, and changes that can be taken back.

A holder writes its record twice: as a file that others read, and into the mark that it keeps open. Cleaners of /tmp
delete files, locked ones too. What they delete of a process that runs is written again by the next process that looks:
from the mark, or, where that was deleted too, through the descriptor of it that /proc shows (`lost`). The lock's file
says how many records there must be, so that nobody looks there without need.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.errors import DeviceError
from brim.records.lease import Lease, LeaseState, LedgerProblem, ProcessId, UnknownLease
from brim.reserve.codec import MOST_GENERATIONS, NewerFormat, from_body, to_body
from brim.reserve.files import (
    LARGEST_BYTES,
    TEMPORARY,
    BadFile,
    is_own_file,
    private_folder,
    read_private,
    read_sealed,
    write_private,
)
from brim.reserve.locks import LivenessLock, has_life, own_descriptor
from brim.reserve.lost import MARK, lost_marks
from brim.reserve.processes import boot_clock, is_running, this_process
from brim.sealed import seal

if TYPE_CHECKING:
    from brim.reserve.ledger import Ledger

RECORD = ".json"


class Page:
    """A ledger while it is locked."""

    def __init__(self, ledger: Ledger, lock: int) -> None:
        self._ledger = ledger
        self._lock = lock
        self._process = this_process()
        self.problems: list[LedgerProblem] = []
        self._newest, self._counted = self._last_generation()
        self.unknown: list[UnknownLease] = []
        self.in_trust: set[str] = set()  # names of leases whose holders have died, and whose keepers run
        self.leases: tuple[Lease, ...] = self._swept()
        self._found = self.leases
        self._undo: list[Callable[[], None]] = []

    def others(self, *own: Lease | None) -> tuple[Lease, ...]:
        """Everybody else, in the order of arrival."""
        names = {lease.name for lease in own if lease is not None}
        return tuple(one for one in self.leases if one.name not in names)

    def unknown_others(self, lease: Lease | None) -> tuple[UnknownLease, ...]:
        """Everybody else that runs and whose lease cannot be read."""
        return tuple(one for one in self.unknown if lease is None or one.name != lease.name)

    def kept_for(self, lease: Lease) -> Lease | None:
        """What a process of the same role left to the same keeper when it died."""
        if lease.keeper is None:
            return None
        left = (one for one in self.leases if one.name in self.in_trust)
        return next((one for one in left if (one.role, one.keeper) == (lease.role, lease.keeper)), None)

    # -- changes -------------------------------------------------------------------------------------------------

    def add(self, lease: Lease) -> tuple[Lease, LivenessLock]:
        """Publish a lease of this process under a new name and generation."""
        generation = self._newest + 1
        name = f"{generation}-{os.getpid()}-{secrets.token_hex(3)}"
        mark = LivenessLock(self._path(name, MARK))
        try:
            self._count(generation, len(self.leases) + 1)
            added = self.publish(replace(lease, name=name, generation=generation), mark)
        except BaseException:
            mark.end()
            raise
        self._undo[-1] = lambda: self._take_back(added, mark)
        self._newest = generation
        return added, mark

    def publish(self, lease: Lease, mark: LivenessLock) -> Lease:
        """Write a lease, new or changed, as a whole; as it is now in the ledger."""
        written = replace(lease, heartbeat_seconds=boot_clock())
        body = to_body(written)
        try:
            from_body(body, written.name, self._ledger.device)
        except BadFile as error:  # nobody could read it: it would be a lease that others do not see
            raise DeviceError(f"leases: {self._ledger.folder}: a lease cannot be written: {error}") from error
        before = next((one for one in self.leases if one.name == lease.name), None)
        try:
            mark.write(_sealed(body))
            write_private(self._path(lease.name, RECORD), body)
        except BaseException:
            mark.write(b"" if before is None else _sealed(to_body(before)))
            raise
        if before is not None:
            self._undo.append(lambda: self._put_back(before, mark))
        else:
            self._undo.append(lambda: self._take_back(written, mark))
        self.leases = tuple(sorted((*self.others(lease), written), key=lambda one: one.generation))
        self.unknown = list(self.unknown_others(lease))
        return written

    def remove(self, lease: Lease) -> None:
        """Take a lease out; the mark is its process'."""
        self._path(lease.name, RECORD).unlink(missing_ok=True)
        self._undo.append(lambda: self._put_back(lease, None))
        self.leases = self.others(lease)

    @property
    def is_current(self) -> bool:
        """Whether nobody has deleted the lock since this process has it: until now, nobody else was in here."""
        try:
            return os.path.samestat(os.fstat(self._lock), self._ledger.lock.lstat())
        except FileNotFoundError:
            return False

    def undo(self) -> None:
        """Take back all that was written here."""
        while self._undo:
            with suppress(OSError):  # deleted already, or no room to write: then the old record was never replaced
                self._undo.pop()()
        self.leases = self._found

    def _take_back(self, added: Lease, mark: LivenessLock) -> None:
        self._path(added.name, RECORD).unlink(missing_ok=True)
        mark.end()

    def _put_back(self, before: Lease, mark: LivenessLock | None) -> None:
        if mark is not None:
            mark.write(_sealed(to_body(before)))
        write_private(self._path(before.name, RECORD), to_body(before))

    def close(self) -> None:
        if self._counted != len(self.leases):
            self._count(self._newest, len(self.leases))

    def _count(self, generation: int, leases: int) -> None:
        """Never less than the records that are there: who finds fewer knows that some were deleted."""
        os.pwrite(self._lock, f"{generation:020d} {leases:06d}".encode(), 0)
        self._counted = leases

    def _path(self, name: str, kind: str) -> Path:
        return self._ledger.folder / f"{name}{kind}"

    def _last_generation(self) -> tuple[int, int | None]:
        """The number of the last lease, and how many there were. Where damaged, what is there says how far it goes."""
        written = os.pread(self._lock, 27, 0)
        last, _, count = written.partition(b" ")
        if last.isdigit() and int(last) < MOST_GENERATIONS:
            return int(last), int(count) if count.isdigit() else None
        if written:
            self.problems.append(LedgerProblem(self._ledger.lock, "holds no number of a lease"))
        return 0, None

    # -- read ----------------------------------------------------------------------------------------------------

    def _swept(self) -> tuple[Lease, ...]:
        """The leases of processes that run. Everything else is removed, or moved away and reported."""
        live, marks, records = [], [], 0
        for path in sorted(self._ledger.folder.iterdir()):
            if path.name.endswith(TEMPORARY):
                self._sweep_temporary(path)
            elif path.suffix == MARK:
                marks.append(path)
            elif path.suffix == RECORD:
                lease = self._read(path)
                records += lease is not None
                live += [] if lease is None else self._counting(lease)
        live += self._sweep(live, marks)
        if self._counted is None or records < self._counted:
            live += self._found_again(live)
        return tuple(sorted(live, key=lambda lease: lease.generation))

    def _sweep_temporary(self, path: Path) -> None:
        """Its writer was killed: nobody writes while we hold the lock."""
        if path.is_dir() and not path.is_symlink():
            self._isolate(path, "no plain file")
        else:
            path.unlink(missing_ok=True)

    def _read(self, path: Path) -> Lease | None:
        try:
            return from_body(read_private(path), path.name.removesuffix(RECORD), self._ledger.device)
        except NewerFormat as error:
            self.problems.append(LedgerProblem(path, str(error)))
        except BadFile as error:
            self._isolate(path, str(error))
        return None

    def _counting(self, lease: Lease) -> list[Lease]:
        """A lease as it counts: as it was written; or, where its holder has died, as it is kept for the next one."""
        self._newest = max(self._newest, lease.generation)
        if self._runs(lease.holder, lease.name):
            return [lease]
        if lease.keeper is None or lease.state is LeaseState.RELEASING or not is_running(lease.keeper, self._process):
            return []
        self.in_trust.add(lease.name)  # its memory is free by the driver's figure, and not there for others
        return [replace(lease, state=LeaseState.HELD, held_bytes=lease.claim_bytes, measured=False)]

    def _runs(self, holder: ProcessId, name: str) -> bool:
        known = is_running(holder, self._process)
        return self._is_kept(self._path(name, MARK)) if known is None else known

    def _sweep(self, live: list[Lease], marks: list[Path]) -> list[Lease]:
        """Remove the records of the dead, and marks that nobody keeps. A record of a newer Brim stays.

        A mark that somebody keeps without a lease is of a process whose record was damaged, lost, or is too new. What
        the mark says is written again, and returned.
        """
        names = {lease.name for lease in live}
        strange = {problem.path.stem for problem in self.problems if problem.moved_to is None}
        for path in self._ledger.folder.glob(f"*{RECORD}"):
            if path.stem not in names | strange:
                path.unlink(missing_ok=True)
        again = []
        for mark in marks:
            if not is_own_file(mark):
                self._put_aside(mark, has_lease=mark.stem in names)
            elif mark.stem in names:
                continue
            elif self._is_kept(mark):
                again += self._written_again(mark.stem, b"" if mark.stem in strange else self._said(mark))
            elif mark.stem not in strange:
                mark.unlink(missing_ok=True)
        return again

    def _said(self, mark: Path) -> bytes:
        """What a mark says. One's own is not opened again: closing it would drop one's lock on it."""
        own = own_descriptor(mark) if self._own(mark) else None
        return mark.read_bytes() if own is None else os.pread(own, LARGEST_BYTES, 0)

    def _found_again(self, live: list[Lease]) -> list[Lease]:
        """Leases of which no file is left, and whose processes run."""
        again: list[Lease] = []
        for name, said in lost_marks(self._ledger.folder).items():
            if name not in {lease.name for lease in (*live, *again)}:
                again += self._written_again(name, said)
        return again

    def _written_again(self, name: str, said: bytes) -> list[Lease]:
        """The lease as its mark has it, where its process runs."""
        try:
            lease = from_body(read_sealed(said), name, self._ledger.device)
        except BadFile:  # of another Brim, or being written in this moment
            self.unknown.append(UnknownLease(name, self._path(name, MARK)))
            return []
        counting = self._counting(lease)
        if counting:
            write_private(self._path(name, RECORD), to_body(lease))
        return counting

    def _put_aside(self, mark: Path, *, has_lease: bool) -> None:
        """What was put in the place of a mark. That of a lease stays: in other containers, none means that it ended."""
        reason = "in the place of a mark, and no plain file of this user's"
        if has_lease:
            self.problems.append(LedgerProblem(mark, reason))
        else:
            self._isolate(mark, reason)

    def _is_kept(self, mark: Path) -> bool:
        """Whether the process that made the mark runs."""
        return self._own(mark) or has_life(mark)

    def _own(self, mark: Path) -> bool:
        """Whether this process has made the mark, perhaps before it became another program."""
        return mark.stem.split("-")[1:2] == [str(os.getpid())] and own_descriptor(mark) is not None

    def _isolate(self, path: Path, reason: str) -> None:
        self.problems.append(LedgerProblem(path, reason, self._isolated(path)))

    def _isolated(self, path: Path) -> Path | None:
        """Where a file was moved to; None if it could not be."""
        folder = self._ledger.isolated
        target = folder / f"{path.name}.{secrets.token_hex(3)}"
        with suppress(OSError, DeviceError):
            private_folder(folder)
            path.rename(target)
            return target
        return None


def _sealed(body: dict[str, Any]) -> bytes:
    return json.dumps(seal(body)).encode()
