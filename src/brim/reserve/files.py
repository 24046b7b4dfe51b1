"""Files of one user that nobody else can read or plant.

In: paths. Out: sealed JSON bodies, or `BadFile` with the reason: another owner, another mode, no plain file, too large,
damaged. What is read is checked through the open descriptor, so that nothing can be exchanged in between. Records are
written to a temporary file and renamed: a reader sees the old one or the new one.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from brim.errors import DeviceError
from brim.sealed import seal, unseal

TEMPORARY = ".tmp"
LARGEST_BYTES = 16 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_NETWORKED = re.compile(r"nfs\d?|cifs|smb\w*|9p|virtiofs|fuse(?:\..*)?|ceph|lustre|gpfs|afs|glusterfs|beegfs|ocfs2")
_REMEDY = "set BRIM_LEASES to a folder of your own on a local disk"


class BadFile(Exception):
    """A file that is not to be believed. Stays inside this package: the ledger isolates the file and goes on."""


def private_folder(path: Path) -> None:
    """Make a folder that only this user can enter, or check that it is one. That around it is there."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise DeviceError(f"leases: {path} is no folder; {_REMEDY}") from None
        if found.st_uid != os.geteuid():
            raise DeviceError(f"leases: {path} belongs to user {found.st_uid}; {_REMEDY}") from None
        if found.st_mode & _OTHERS:
            raise DeviceError(f"leases: {path} is open to other users; chmod 700 it, or {_REMEDY}") from None


def refuse_network(folder: Path) -> None:
    """Locks and process numbers mean nothing on another machine."""
    kind = _filesystem(folder.resolve(), Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace"))
    if _NETWORKED.fullmatch(kind):
        raise DeviceError(f"leases: {folder} is on {kind}, which other machines may share; {_REMEDY}")


def _filesystem(folder: Path, mounts: str) -> str:
    """The kind of file system that a folder is on, from the kernel's table of mounts; "" if it is not there."""
    deepest, kind = -1, ""
    for line in mounts.splitlines():
        where, _, what = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), where.split()[4]))
        if folder.is_relative_to(point) and len(point.parts) >= deepest:  # a later mount hides an earlier one
            deepest, kind = len(point.parts), what.split()[0]
    return kind


def is_own_file(path: Path) -> bool:
    """Whether there is a plain file of this user's."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def read_private(path: Path) -> dict[str, Any]:
    """The body of a sealed file of this user's. Raises `BadFile`, and FileNotFoundError where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadFile(f"cannot be opened ({error.strerror})") from None
    try:
        _check(os.fstat(descriptor))
        raw = os.read(descriptor, LARGEST_BYTES)
    finally:
        os.close(descriptor)
    return read_sealed(raw)


def read_sealed(raw: bytes) -> dict[str, Any]:
    """The body that was sealed in these bytes. Raises `BadFile`."""
    try:
        body = unseal(json.loads(raw))
    except (ValueError, RecursionError):
        raise BadFile("truncated or not JSON") from None
    if body is None:
        raise BadFile("its checksum is wrong")
    return body


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise BadFile("no plain file")
    if found.st_uid != os.geteuid():
        raise BadFile(f"belongs to user {found.st_uid}")
    if found.st_mode & _OTHERS:
        raise BadFile(f"open to other users (mode {stat.S_IMODE(found.st_mode):o})")
    if found.st_size > LARGEST_BYTES:
        raise BadFile(f"too large ({found.st_size:,} bytes)")


def write_private(path: Path, body: dict[str, Any]) -> None:
    """Replace a file as a whole. The caller holds the ledger's lock: nobody else writes."""
    temporary = path.with_name(path.name + TEMPORARY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(seal(body), file)
            file.flush()
            os.fsync(file.fileno())  # a full disk is noticed before the old record is gone
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
