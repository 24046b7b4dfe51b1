"""Two kinds of locks that the kernel drops with their process, however it ends.

`exclusive` guards a ledger for the moment of a change. It waits for a limited time: a process that is suspended inside
keeps it. A forked child closes its copy, so that no lock outlives its process.

`LivenessLock` says for as long as a process runs that it does: a POSIX lock, which stays over an exec and is never a
child's. Processes of other containers on the same kernel see it, although they cannot see the process. What the
process has published is written in it too.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from brim.errors import NeighboursUnknown

_PAUSE_SECONDS = 0.002
_DESCRIPTORS: set[int] = set()  # of ledgers that this process has locked; only for children that are forked meanwhile


def _close_inherited() -> None:
    for descriptor in _DESCRIPTORS:
        with suppress(OSError):
            os.close(descriptor)
    _DESCRIPTORS.clear()


os.register_at_fork(after_in_child=_close_inherited)


@contextmanager
def exclusive(path: Path, seconds: float) -> Iterator[int]:
    """The only one in here, among all processes and threads: the open descriptor of the lock's file."""
    deadline = time.monotonic() + seconds
    descriptor = _locked(path)
    while descriptor is None:
        if time.monotonic() > deadline:
            raise NeighboursUnknown(
                f"leases: {path} was locked by another process for {seconds:g} s; "
                "see whether a process that uses leases is suspended, and continue or end it"
            )
        time.sleep(_PAUSE_SECONDS)
        descriptor = _locked(path)
    _DESCRIPTORS.add(descriptor)
    try:
        yield descriptor
    finally:
        if descriptor in _DESCRIPTORS:  # not in a child that was forked in here
            _DESCRIPTORS.discard(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # for copies that a fork outside Python has made
            os.close(descriptor)


def _locked(path: Path) -> int | None:
    """The file at this path, locked; None if another has it, or somebody replaced the file meanwhile."""
    descriptor = _opened(path)
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    os.close(descriptor)
    return None


def _opened(path: Path) -> int:
    """The lock's file, made where there is none. Nothing else can take its place: it could not be locked first."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        if path.is_symlink() or path.is_dir():
            raise _no_lock(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_lock(path)
    return descriptor


def _no_lock(path: Path) -> NeighboursUnknown:
    return NeighboursUnknown(f"leases: {path} is no plain file and cannot be locked; remove it")


class LivenessLock:
    """This process runs; and, should its record be lost, what that said."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _marked(path)

    def write(self, said: bytes) -> None:
        """Nothing: the lease was given up, also for children that were forked and have the file open."""
        os.pwrite(self._descriptor, said, 0)
        os.ftruncate(self._descriptor, len(said))

    def touch(self) -> bool:
        """Show that it is in use; False where others do not find it any more."""
        os.utime(self._descriptor)
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.lstat())
        except FileNotFoundError:
            return False

    def make_again(self) -> None:
        """After somebody deleted it."""
        deleted, self._descriptor = self._descriptor, _marked(self._path)
        os.close(deleted)

    def keep_over_exec(self) -> None:
        os.set_inheritable(self._descriptor, True)

    def end(self) -> None:
        self.write(b"")
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _marked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def own_descriptor(path: Path) -> int | None:
    """By which this process has the file open. Looked up, not opened: closing a file drops one's locks on it."""
    try:
        wanted = path.lstat()
    except FileNotFoundError:
        return None
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if os.path.samestat(entry.stat(), wanted):
                return int(entry.name)
    return None


def has_life(path: Path) -> bool:
    """Whether the process that made this mark runs, or may: a mark that is no plain file tells nothing.

    Not for marks of one's own: closing a file drops one's locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return True
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        return True
    finally:
        os.close(descriptor)
    return False
