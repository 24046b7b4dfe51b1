"""The ledger of a device: a folder with a record for every lease, shared by unrelated processes of one user.

    ROOT/cpu%3Alab/lock                 locked for every look and every change; in it, the last generation, and how
                                        many leases there are
    ROOT/cpu%3Alab/3-812-9f21c0.json    a lease: generation, pid and a random number
    ROOT/cpu%3Alab/3-812-9f21c0.alive   the same again, locked by its process for as long as that runs
    ROOT/cpu%3Alab/isolated/            what was no lease

There is no daemon: any process that looks removes the leases of processes that have gone. A process of the same pid
namespace is looked up in /proc (pid and start time); one of another container, or that /proc hides, by its `.alive`
file. A suspended process has not gone: it still holds its memory. Files that are no leases are moved away and reported,
never an error. A process that runs and has no record that can be read is an `UnknownLease`: nothing new can be promised
beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

from brim.errors import DeviceError, NeighboursUnknown
from brim.reserve.devices import is_key
from brim.reserve.files import private_folder, refuse_network
from brim.reserve.locks import exclusive
from brim.reserve.lost import lost_marks
from brim.reserve.page import RECORD, Page

LOCK_SECONDS = 20.0  # a change takes milliseconds; only a suspended process keeps the lock
_ISOLATED = "isolated"

T = TypeVar("T")


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

    def touch(self, name: str) -> bool:
        """Show cleaners of /tmp that a lease, the lock and the folders are in use; False where the record has gone."""
        try:
            for path in (self.folder / f"{name}{RECORD}", self.lock, self.folder, self.root):
                os.utime(path)
        except OSError:
            return False
        return True

    @property
    def has_holders(self) -> bool:
        """Whether there can be any: the folder is there, or processes run whose leases were deleted with it."""
        return self.folder.exists() or bool(lost_marks(self.folder))

    @contextmanager
    def opened(self, seconds: float = LOCK_SECONDS) -> Iterator[Page]:
        """The ledger as it is now, swept, for one look; nobody else is in it meanwhile."""
        with _in_words(self.root), ExitStack() as locked:
            page = self._entered(locked, seconds)
            try:
                yield page
            finally:
                page.close()

    def change(self, made: Callable[[Page], T], seconds: float = LOCK_SECONDS) -> T:
        """One change: `made` looks at the ledger and writes to it, and nobody else is in it meanwhile.

        A cleaner of /tmp may delete the lock, and another process may have made its own and be in here too. Then what
        was written is taken back, and `made` is called again, with what the other has written.
        """
        deadline = time.monotonic() + seconds
        while True:
            with self.opened(seconds) as page:
                try:
                    done = made(page)
                    if page.is_current:
                        return done
                except FileNotFoundError:
                    pass  # deleted under our hands
                except BaseException:
                    page.undo()
                    raise
                page.undo()
            if time.monotonic() > deadline:
                raise NeighboursUnknown(f"leases: files in {self.folder} are deleted again and again; find out by whom")

    def _entered(self, locked: ExitStack, seconds: float) -> Page:
        """Folders and files may be deleted at any moment: then from the beginning."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.root.parent.mkdir(parents=True, exist_ok=True)
                private_folder(self.root)
                refuse_network(self.root)
                private_folder(self.folder)
                lock = locked.enter_context(exclusive(self.lock, seconds))
                return Page(self, lock)
            except FileNotFoundError:
                locked.close()
                if time.monotonic() > deadline:
                    raise


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
