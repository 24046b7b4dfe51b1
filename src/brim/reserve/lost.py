"""Leases whose files were deleted while their processes run, found by what those processes have open.

In: the folder of a ledger. Out: what the marks say that were in it and are in no folder any more, by the lease's name.
The kernel keeps a deleted file for as long as a process has it open, and /proc shows it to the same user in the same
pid namespace. A program that `brim hold` became is found in this way: nothing of Brim runs in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from brim.reserve.files import LARGEST_BYTES

MARK = ".alive"
_DELETED = f"{MARK} (deleted)"


def lost_marks(folder: Path) -> dict[str, bytes]:
    """What each deleted mark says; one that says nothing was given up."""
    where = os.path.realpath(folder) + os.sep
    found: dict[str, bytes] = {}
    for pid, descriptor, target in _open_files():
        name = target.removeprefix(where).removesuffix(_DELETED)
        if target == f"{where}{name}{_DELETED}" and os.sep not in name and name not in found:
            with suppress(OSError):  # closed meanwhile
                said = _content(pid, descriptor)
                if said:
                    found[name] = said
    return found


def _open_files() -> Iterator[tuple[int, int, str]]:
    """(process, descriptor, file) of everything that /proc lets this user see."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):  # it has ended, or is another user's
                for descriptor in (process / "fd").iterdir():
                    with suppress(OSError):
                        yield int(process.name), int(descriptor.name), str(descriptor.readlink())


def _content(pid: int, descriptor: int) -> bytes:
    """The file itself. One's own is not opened again: closing it would drop one's lock on it."""
    if pid == os.getpid():
        return os.pread(descriptor, LARGEST_BYTES, 0)
    opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(opened, LARGEST_BYTES, 0)
    finally:
        os.close(opened)
