"""Weight bytes as stored: from the headers of safetensors files, or from their index where shards are missing.

In: a model directory. Out: bytes, and how they are known. A directory may hold its weights several times: those are
counted that engines load, `model.safetensors` or else what the index names. Without both, all other files are counted;
they are not the model where numbered shards are missing, and nothing is known then. Layers after the last one that the
model runs (multi-token prediction) are in the files but not loaded; they are left out where headers list the tensors.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from brim.errors import InvalidConfig, SourceNotFound
from brim.model.jsonfile import parse_object, read_object
from brim.units import MIB

_LARGEST_HEADER_BYTES = 100 * MIB  # the format's own limit
_LONGEST_NAME_BYTES = 255
_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_OTHER_COPY = "consolidated"  # what files of the model's own format begin with, beside those of this one
_NUMBERED = re.compile(r"(.+)-\d{5}-of-(\d{5})\.safetensors")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """What the files hold, and how that is known."""

    bytes: int
    detail: str


def stored_weights(directory: Path, layers: int) -> StoredWeights | None:
    """The weights in a directory; None where it has no safetensors, or only some of them."""
    whole, index = directory / _WHOLE, directory / _INDEX
    if whole.is_file():
        return _from_headers([whole], layers)
    if index.is_file():
        return _indexed(index, layers)
    return _from_headers(_unindexed(directory), layers)


def _indexed(index: Path, layers: int) -> StoredWeights | None:
    raw = read_object(index)
    shards = [index.with_name(name) for name in _shard_names(raw, index)]
    missing = [shard for shard in shards if not shard.is_file()]
    return _from_index(raw, index, len(missing), len(shards)) if missing else _from_headers(shards, layers)


def _unindexed(directory: Path) -> list[Path]:
    """The files that are the model; none where a numbered one is missing."""
    files = sorted(file for file in directory.glob("*.safetensors") if file.is_file())
    files = [file for file in files if not file.name.startswith(_OTHER_COPY)] or files
    numbered = [found for file in files if (found := _NUMBERED.fullmatch(file.name))]
    sets = {(found[1], int(found[2])) for found in numbered}
    return files if len(numbered) == sum(number for _, number in sets) else []


def _from_headers(shards: Sequence[Path], layers: int) -> StoredWeights | None:
    if not shards:
        return None
    total = sum(_shard_bytes(shard, layers) for shard in shards)
    return StoredWeights(total, f"from the headers of {len(shards)} safetensors file{'s' if len(shards) > 1 else ''}")


def _shard_names(raw: dict[str, Any], index: Path) -> list[str]:
    found = raw.get("weight_map")
    if not isinstance(found, dict):
        raise InvalidConfig(f"{index.name}: weight_map", "missing or not an object", "download the index again")
    names = sorted({name for name in found.values() if isinstance(name, str)})
    for name in names:
        if not name or Path(name).name != name or len(name.encode(errors="replace")) > _LONGEST_NAME_BYTES:
            raise InvalidConfig(
                f"{index.name}: weight_map", f"names no file beside it ({name[:40]!r})", "download the index again"
            )
    return names


def _from_index(raw: dict[str, Any], index: Path, missing: int, all_shards: int) -> StoredWeights | None:
    metadata = raw.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, bool) or not isinstance(total, int | float) or not isfinite(total) or total <= 0:
        return None
    return StoredWeights(int(total), f"from {index.name} ({missing} of {all_shards} shards are not here)")


def _shard_bytes(path: Path, layers: int) -> int:
    try:
        header = read_header(path)
    except OSError as error:
        raise SourceNotFound(f"{path}: cannot be read ({error.strerror or error})") from None
    total = 0
    for name, tensor in header.items():
        found = _LAYER.search(name)
        behind = found is not None and int(found[1]) >= layers and "vis" not in name and "audio" not in name
        if name == "__metadata__" or behind or name.startswith("mtp."):
            continue
        start, end = _offsets(tensor, path, name)
        total += end - start
    return total


def _offsets(tensor: object, path: Path, name: str) -> tuple[int, int]:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(o, int) and o >= 0 for o in offsets)):
        raise InvalidConfig(
            f"{path.name}: {name[:60]}", "has no data offsets", "the file is damaged; download it again"
        )
    return offsets[0], offsets[1]


def read_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file, checked against the file's size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(_LARGEST_HEADER_BYTES, max(0, size - 8)):
            raise InvalidConfig(path.name, "is truncated or not a safetensors file", "download it again")
        text = file.read(length)
    try:
        header = parse_object(text.decode("utf-8"), path.name)
    except UnicodeDecodeError:
        raise InvalidConfig(path.name, "is truncated or not a safetensors file", "download it again") from None
    ends = [_offsets(tensor, path, name)[1] for name, tensor in header.items() if name != "__metadata__"]
    if max(ends, default=0) > size - 8 - length:
        missing = max(ends) - (size - 8 - length)
        raise InvalidConfig(path.name, f"is truncated: {missing:,} bytes of tensors are missing", "download it again")
    return header
