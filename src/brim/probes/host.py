"""How much memory of the host this process may still take: of the machine, and of the container that it runs in."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (  # (limit, in use), of version 2 and of version 1
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def available_host_bytes() -> int:
    """Bytes that can be taken without swapping; 0 where the system does not say."""
    found = [_of_machine(), *(_of_cgroup(limit, used) for limit, used in _CGROUPS)]
    return max(0, min((one for one in found if one is not None), default=0))


def _of_machine() -> int | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return _of_free_pages()
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kib is None else int(kib) * 1024


def _of_free_pages() -> int | None:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _of_cgroup(limit: Path, used: Path) -> int | None:
    try:
        return int(limit.read_text(encoding="ascii")) - int(used.read_text(encoding="ascii"))
    except (OSError, ValueError):  # not in one, or "max"
        return None
