"""Weight bytes as stored: from the headers of safetensors files, or from their index where shards are missing.

In: a model directory. Out: bytes, and how they are known. Layers after the last one that the model runs (multi-token
prediction) are in the files but not loaded; they are left out where headers list the tensors.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import InvalidConfig
from brim.model.jsonfile import parse_object, read_object
from brim.units import MIB

_LARGEST_HEADER_BYTES = 100 * MIB  # the format's own limit
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """What the files hold, and how that is known."""

    bytes: int
    detail: str


def stored_weights(directory: Path, layers: int) -> StoredWeights | None:
    """The weights in a directory; None where it has no safetensors."""
    index = directory / "model.safetensors.index.json"
    shards = sorted(directory.glob("*.safetensors"))
    if index.is_file():
        raw = read_object(index)
        named = sorted({name for name in _weight_map(raw, index).values() if isinstance(name, str)})
        missing = [name for name in named if not (directory / name).is_file()]
        if missing:
            return _from_index(raw, index, len(missing), len(named))
        shards = [directory / name for name in named]
    if not shards:
        return None
    total = sum(_shard_bytes(shard, layers) for shard in shards)
    return StoredWeights(total, f"from the headers of {len(shards)} safetensors file{'s' if len(shards) > 1 else ''}")


def _weight_map(raw: dict[str, Any], index: Path) -> dict[str, Any]:
    found = raw.get("weight_map")
    if not isinstance(found, dict):
        raise InvalidConfig(f"{index.name}: weight_map", "missing or not an object", "download the index again")
    return found


def _from_index(raw: dict[str, Any], index: Path, missing: int, all_shards: int) -> StoredWeights | None:
    metadata = raw.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, bool) or not isinstance(total, int | float) or total <= 0:
        return None
    return StoredWeights(int(total), f"from {index.name} ({missing} of {all_shards} shards are not here)")


def _shard_bytes(path: Path, layers: int) -> int:
    total = 0
    for name, tensor in read_header(path).items():
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
