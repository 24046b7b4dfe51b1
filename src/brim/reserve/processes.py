"""Which process is which, from Linux's /proc.

In: a pid. Out: a `ProcessId`, and whether that process still runs. A number that was reused has another start time; a
record of an earlier boot has another boot id; a process in another container has another pid namespace, where this
process' /proc says nothing of it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from brim.errors import DeviceError
from brim.records.lease import ProcessId

FIRST_PID_SPACE = 0xEFFFFFFC  # the inode of the namespace that the kernel starts with; the same on every Linux
_PROC = Path("/proc")
_NOT_SEEN = (FileNotFoundError, ProcessLookupError, PermissionError)  # gone, or hidden (hidepid)
_GONE = ("Z", "X", "x")  # zombies have given back their memory


def boot_clock() -> float:
    """Seconds since boot, time asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def this_process() -> ProcessId:
    pid = os.getpid()
    if _PROC.is_dir() and (_PROC / "self").readlink() != Path(str(pid)):
        raise DeviceError("leases: /proc belongs to another pid namespace than this process; mount one of its own")
    return identify(pid)


def identify(pid: int) -> ProcessId:
    """A process of this pid namespace that runs now."""
    try:
        boot_id = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return ProcessId(pid, _started_ticks(_stat(pid)), boot_id, _pid_space())
    except OSError as error:
        why = f"{error.filename} cannot be read ({error.strerror})"
        raise DeviceError(f"leases need Linux's /proc, and {why}") from None


def is_running(process: ProcessId, seen_from: ProcessId) -> bool | None:
    """Whether a process runs; None where /proc cannot say: it belongs to another container, or is hidden."""
    if process.boot_id != seen_from.boot_id:
        return False
    if process.pid_space != seen_from.pid_space:
        return None
    try:
        stat = _stat(process.pid)
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        return None if is_there(process.pid) else False
    return _started_ticks(stat) == process.started_ticks and stat[0] not in _GONE


def is_there(pid: int) -> bool:
    """Whether this pid namespace has a process of this number, as the kernel says it even where /proc hides it."""
    try:
        with suppress(PermissionError):
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_suspended(process: ProcessId) -> bool:
    """Whether a process was stopped by a signal or a debugger, as far as /proc can say."""
    if process.pid_space != _pid_space():
        return False
    try:
        return _stat(process.pid)[0] in ("T", "t")
    except OSError:
        return False


def descendants(pid: int, without: frozenset[int] = frozenset()) -> frozenset[int]:
    """A process and everything it has started that still belongs to it, as far as /proc shows it.

    Those in `without` and what they have started are left out.
    """
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                parent = int(_stat(int(entry.name))[1])
            except _NOT_SEEN:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = set[int](), [pid]
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting += [child for child in children.get(one, ()) if child not in found | without]
    return frozenset(found)


def resident_bytes(pid: int) -> int:
    """The host memory of a process; 0 once it has gone, or where it is hidden."""
    try:
        pages = int((_PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1])
    except _NOT_SEEN:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _pid_space() -> int:
    return (_PROC / "self/ns/pid").stat().st_ino


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on. A program's name may hold anything, also brackets and spaces."""
    text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def _started_ticks(stat: list[str]) -> int:
    return int(stat[19])
