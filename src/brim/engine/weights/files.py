"""A checkpoint's safetensors files, checked before anything is loaded: all present, and each of the right length.

In: a model's directory. Out: its weight files. An incomplete download is found here, in milliseconds, with the name of
the file and the missing bytes; only headers are read, so corrupt values are not found.
"""

from __future__ import annotations

import struct
from pathlib import Path

from brim.errors import InvalidConfig, InvalidRequest, SourceNotFound
from brim.model.checkpoint import read_header
from brim.model.jsonfile import read_object
from brim.units import format_bytes

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_LFS_POINTER = b"version https://git-lfs"


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The files that hold the weights, each of them checked."""
    if (directory / _WHOLE).exists():
        files = [directory / _WHOLE]
    elif (directory / _INDEX).exists():
        files = _indexed(directory)
    else:
        raise SourceNotFound(
            f"{directory}: no {_WHOLE} and no {_INDEX} in it; download the weights, or run it with random ones: "
            "--load-format dummy"
        )
    for file in files:
        try:
            _check(file)
        except OSError as error:
            raise SourceNotFound(f"{file}: cannot be read ({error.strerror or error})") from None
    return tuple(files)


def _indexed(directory: Path) -> list[Path]:
    index = read_object(directory / _INDEX)
    named = index.get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise InvalidRequest(f"{directory / _INDEX}: has no weight_map; download it again")
    outside = next((name for name in named.values() if Path(name).name != name), None)
    if outside is not None:
        raise InvalidRequest(f"{directory / _INDEX}: names a file outside its directory ({outside[:80]})")
    files = [directory / name for name in sorted(set(named.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        present = sum(file.stat().st_size for file in files if file.is_file())
        raise SourceNotFound(
            f"{directory}: {len(missing)} of {len(files)} weight files are missing ({few(missing)}"
            f"{_of_total(index, present)}); download them again, or use --load-format dummy"
        )
    return files


def few(names: list[str]) -> str:
    """The first of many names, for a message."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _of_total(index: dict[str, object], present: int) -> str:
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return f": {format_bytes(total - present)} of tensors" if isinstance(total, int) and total > present else ""


def _check(file: Path) -> None:
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        raise InvalidRequest(f"{file}: is a git-lfs pointer and not the file; fetch it with `git lfs pull`")
    try:
        header = read_header(file)
    except InvalidConfig as error:
        remedy = error.remedy or "download it again"
        raise InvalidRequest(f"{file}: {error.problem}; it has {size:,} bytes; {remedy}") from None
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    expected = 8 + struct.unpack("<Q", start[:8])[0] + max(ends, default=0)
    if size != expected:
        raise InvalidRequest(f"{file}: has {size - expected:,} bytes behind its last tensor; download it again")
