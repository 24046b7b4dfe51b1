"""The ledger of a device: a folder with a record for every lease, shared by unrelated processes of one user.

    ROOT/cpu%3Alab/lock                 locked for every look and every change; the last generation is written in it
    ROOT/cpu%3Alab/3-812-9f21c0.json    a lease: generation, pid and a random number
    ROOT/cpu%3Alab/3-812-9f21c0.alive   locked by its process for as long as that runs
    ROOT/cpu%3Alab/isolated/            what was no lease

There is no daemon: whoever looks removes the leases of processes that have gone. A process of the same pid namespace is
looked up in /proc (pid and start time); one of another container, or that /proc hides, by its `.alive` file. A
suspended process has not gone: it still holds its memory. Files that are no leases are moved away and reported, never
an error. A process that runs and has no record that can be read is an `UnknownLease`: nothing new can be promised
beside it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

from brim.errors import DeviceError
from brim.records.lease import Lease, LedgerProblem, ProcessId, UnknownLease
from brim.reserve.codec import MOST_GENERATIONS, FromTheFuture, from_body, to_body
from brim.reserve.devices import is_key
from brim.reserve.files import (
    TEMPORARY,
    BadFile,
    is_own_file,
    private_folder,
    read_private,
    refuse_network,
    write_private,
)
from brim.reserve.locks import LifeMark, exclusive, has_life, is_open_here
from brim.reserve.processes import boot_clock, is_running, this_process

LOCK_SECONDS = 20.0  # a change takes milliseconds; only a suspended process keeps the lock
_RECORD = ".json"
_MARK = ".alive"
_ISOLATED = "isolated"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The leases of one device under a root folder."""

    root: Path
    device: str

    @property
    def folder(self) -> Path:
        return self.root / quote(self.device, safe="")

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def isolated(self) -> Path:
        """Where files lie that were no leases."""
        return self.folder / _ISOLATED

    @property
    def exists(self) -> bool:
        """Whether somebody has opened it before."""
        return self.folder.is_dir() and os.path.lexists(self.lock)

    @contextmanager
    def opened(self, seconds: float = LOCK_SECONDS) -> Iterator[Page]:
        """The ledger as it is now, swept, for one look or one change; nobody else is in it meanwhile."""
        with _in_words(self.root):
            private_folder(self.root)
            refuse_network(self.root)
            private_folder(self.folder)
            with exclusive(self.lock, seconds) as lock:
                yield Page(self, lock)


def known_devices(root: Path) -> tuple[str, ...]:
    """The devices that have a ledger. Other folders there are somebody's own, and are left alone."""
    with _in_words(root):
        if not root.exists():
            return ()
        private_folder(root)
        named = {path: Ledger(root, unquote(path.name)) for path in root.iterdir() if not path.is_symlink()}
        found = [one.device for path, one in named.items() if one.folder == path and is_key(one.device) and one.exists]
        return tuple(sorted(found))


def forget_device(root: Path, device: str) -> None:
    """Remove the ledger of a budget that nobody will use again. One with leases in it, or strange files, stays."""
    ledger = Ledger(root, device)
    if not ledger.folder.exists():
        return
    with suppress(DeviceError), ledger.opened():  # the leases of the dead are removed
        if list(ledger.folder.iterdir()) == [ledger.lock]:
            ledger.lock.unlink()
            ledger.folder.rmdir()


@contextmanager
def _in_words(root: Path) -> Iterator[None]:
    """What the file system refuses, as an error of Brim's."""
    try:
        yield
    except OSError as error:
        raise DeviceError(
            f"leases: {error.filename or root}: {error.strerror or error}; "
            "make room there, or set BRIM_LEASES to another folder"
        ) from error


class Page:
    """A ledger while it is locked."""

    def __init__(self, ledger: Ledger, lock: int) -> None:
        self._ledger = ledger
        self._lock = lock
        self._process = this_process()
        self.problems: list[LedgerProblem] = []
        self._newest = self._last_generation()
        self.unknown: list[UnknownLease] = []
        self.leases: tuple[Lease, ...] = self._swept()

    def others(self, lease: Lease | None) -> tuple[Lease, ...]:
        """Everybody else, in the order of arrival."""
        return tuple(one for one in self.leases if lease is None or one.name != lease.name)

    def unknown_others(self, lease: Lease | None) -> tuple[UnknownLease, ...]:
        """Everybody else that runs and whose lease cannot be read."""
        return tuple(one for one in self.unknown if lease is None or one.name != lease.name)

    def add(self, lease: Lease) -> tuple[Lease, LifeMark]:
        """Publish a lease of this process under a new name and generation."""
        generation = self._newest + 1
        name = f"{generation}-{os.getpid()}-{secrets.token_hex(3)}"
        mark = LifeMark(self._path(name, _MARK))
        try:
            os.pwrite(self._lock, f"{generation:020d}".encode(), 0)
            added = self.publish(replace(lease, name=name, generation=generation))
        except BaseException:
            mark.end()
            raise
        self._newest = generation
        return added, mark

    def publish(self, lease: Lease) -> Lease:
        """Write a lease, new or changed, as a whole; as it is now in the ledger."""
        written = replace(lease, heartbeat_seconds=boot_clock())
        body = to_body(written)
        try:
            from_body(body, written.name, self._ledger.device)
        except BadFile as error:  # nobody could read it: it would be a lease that others do not see
            raise DeviceError(f"leases: {self._ledger.folder}: a lease cannot be written: {error}") from error
        write_private(self._path(lease.name, _RECORD), body)
        self.leases = tuple(sorted((*self.others(lease), written), key=lambda one: one.generation))
        self.unknown = list(self.unknown_others(lease))
        return written

    def remove(self, lease: Lease) -> None:
        """Take a lease out; the mark is its process'."""
        self._path(lease.name, _RECORD).unlink(missing_ok=True)
        self.leases = self.others(lease)

    def _path(self, name: str, kind: str) -> Path:
        return self._ledger.folder / f"{name}{kind}"

    def _last_generation(self) -> int:
        """The number of the last lease. Where that is damaged, those that are there say how far it goes."""
        written = os.pread(self._lock, 20, 0)
        if written.isdigit() and int(written) < MOST_GENERATIONS:
            return int(written)
        if written:
            self.problems.append(LedgerProblem(self._ledger.lock, "holds no number of a lease"))
        return 0

    # -- read ----------------------------------------------------------------------------------------------------

    def _swept(self) -> tuple[Lease, ...]:
        """The leases of processes that run. Everything else is removed, or moved away and reported."""
        live, marks = [], []
        for path in sorted(self._ledger.folder.iterdir()):
            if path.name.endswith(TEMPORARY):
                self._sweep_temporary(path)
            elif path.suffix == _MARK:
                marks.append(path)
            elif path.suffix == _RECORD:
                lease = self._read(path)
                if lease is not None:
                    self._newest = max(self._newest, lease.generation)
                    live += [lease] if self._runs(lease.holder, lease.name) else []
        self._sweep(live, marks)
        return tuple(sorted(live, key=lambda lease: lease.generation))

    def _sweep_temporary(self, path: Path) -> None:
        """Its writer was killed: nobody writes while we hold the lock."""
        if path.is_dir() and not path.is_symlink():
            self._isolate(path, "no plain file")
        else:
            path.unlink(missing_ok=True)

    def _read(self, path: Path) -> Lease | None:
        try:
            return from_body(read_private(path), path.name.removesuffix(_RECORD), self._ledger.device)
        except FromTheFuture as error:
            self.problems.append(LedgerProblem(path, str(error)))
        except BadFile as error:
            self._isolate(path, str(error))
        return None

    def _runs(self, holder: ProcessId, name: str) -> bool:
        known = is_running(holder, self._process)
        return self._is_kept(self._path(name, _MARK)) if known is None else known

    def _sweep(self, live: list[Lease], marks: list[Path]) -> None:
        """Remove the records of the dead, and marks that nobody keeps. A record of a newer Brim stays.

        A mark that somebody keeps without a lease is of a process whose record was damaged, lost, or is too new.
        """
        names = {lease.name for lease in live}
        strange = {problem.path.stem for problem in self.problems if problem.moved_to is None}
        for path in self._ledger.folder.glob(f"*{_RECORD}"):
            if path.stem not in names | strange:
                path.unlink(missing_ok=True)
        for mark in marks:
            if not is_own_file(mark):
                self._put_aside(mark, has_lease=mark.stem in names)
            elif mark.stem in names:
                continue
            elif self._is_kept(mark):
                self.unknown.append(UnknownLease(mark.stem, mark))
            elif mark.stem not in strange:
                mark.unlink(missing_ok=True)

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
        return mark.stem.split("-")[1:2] == [str(os.getpid())] and is_open_here(mark)

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
