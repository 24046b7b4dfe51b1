"""Which process of this machine listens at an address, from Linux's /proc; nobody where it may not be seen."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path
from urllib.parse import urlsplit

from brim.reserve.processes import descendants

_PROC = Path("/proc")
_TABLES = ("net/tcp", "net/tcp6")
_LISTENS = "0A"
_PORTS = {"http": 80, "https": 443}
_LARGEST_TABLE = 16 << 20


def is_of_this_machine(url: str) -> bool:
    """Whether an address is loopback. A tunnel to another machine looks the same."""
    host = urlsplit(url).hostname or ""
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)


def processes_of(url: str, proc: Path = _PROC) -> frozenset[int]:
    """The process that listens there, and all that it has started."""
    parts = urlsplit(url)
    inodes = _listening(parts.port or _PORTS.get(parts.scheme, 0), proc)
    pid = _holder(inodes, proc) if inodes else None
    return frozenset() if pid is None else descendants(pid)


def _listening(port: int, proc: Path) -> set[str]:
    """The inodes of sockets that listen at a port."""
    found = set()
    for table in _TABLES:
        try:
            with (proc / table).open("rb") as file:
                lines = file.read(_LARGEST_TABLE).decode("ascii", "replace").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if len(fields) > 9 and fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found


def _holder(inodes: set[str], proc: Path) -> int | None:
    """The first process that has one of these sockets open: servers start others, which inherit it."""
    for pid in sorted(int(one.name) for one in proc.iterdir() if one.name.isdecimal()):
        folder = proc / str(pid) / "fd"
        try:
            if any(_target(name) in inodes for name in folder.iterdir()):
                return pid
        except OSError:  # gone, or another user's
            continue
    return None


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
