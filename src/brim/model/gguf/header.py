"""The header of a GGUF file: metadata and the table of tensors, read in bounded memory and time.

In: a file that can be read from its beginning, and its size. Out: a `GgufHeader`, or `InvalidConfig` that says what is
wrong with the file. The weights are never read, and arrays of the tokenizer, which are most of a header, are walked
over.

The `gguf` package reads such files too. It maps the whole file, makes a numpy array of every token, and takes seconds
where a plan needs a few hundredths of one (6.6 s and 0.04 s for a header of 10 MB); it also believes what a file says
of its own sizes. So the reader here is Brim's own, and the package is what tests make files with and compare with.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from brim.errors import InvalidConfig, SourceNotFound
from brim.model.quantisers.ggml_types import GGML_TYPES, GgmlType
from brim.units import MIB

_MAGIC = b"GGUF"
_OLDER = (b"ggml", b"lmgg", b"tjgg", b"fmgg", b"algg", b"ggjt", b"ggmf", b"ggla")
_POINTER = b"version https://git-lfs"
_VERSIONS = (2, 3)
_LARGEST_HEADER_BYTES = 64 * MIB  # the tokenizer of Llama 3 takes 10
_CHUNK_BYTES = MIB
_MOST_KEYS = 1 << 14
_MOST_TENSORS = 1 << 16  # files with a tensor for each expert have 20,000
_MOST_DIMENSIONS = 4
_LONGEST_NAME_BYTES = 1024
_LONGEST_TEXT_BYTES = 4096  # that is kept
_LONGEST_ARRAY = 4096  # of numbers, that is kept: one for each layer
_LARGEST_TENSOR = 1 << 48  # elements
_DAMAGED = "the file is damaged; download or convert it again"

# Types of values, by number: how they are packed. 8 is text, 9 an array.
_SCALARS: Mapping[int, struct.Struct] = {
    number: struct.Struct(f"<{code}")
    for number, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_TEXT, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the table. The shape is as checkpoints have it: rows first, values of a row last."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements // self.type.block * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a file says of itself. Long texts and arrays, and the tokenizer's, are not in `metadata`."""

    file: str
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        found = self.metadata.get("general.architecture")
        return found if isinstance(found, str) else ""


def read_header_file(path: Path) -> GgufHeader:
    """The header of a file on this machine."""
    try:
        if not path.is_file():
            raise SourceNotFound(f"{path}: not a regular file; give a GGUF file, or the folder that it is in")
        with path.open("rb") as file:
            return read_header(file, path.name, path.stat().st_size)
    except OSError as error:
        raise SourceNotFound(f"{path}: cannot be read ({error.strerror or error})") from None


def read_header(file: BinaryIO, name: str, size: int) -> GgufHeader:
    """The header of an open file of so many bytes."""
    cursor = _Cursor(file, name, size)
    _check_kind(cursor)
    tensor_count = cursor.count(_MOST_TENSORS, "tensors")
    key_count = cursor.count(_MOST_KEYS, "metadata keys")
    metadata: dict[str, Any] = {}
    seen: set[str] = set()
    for _ in range(key_count):
        key = cursor.name("a metadata key")
        if key in seen:
            cursor.fail(f"has the key '{key[:60]}' twice")
        seen.add(key)
        value = _value(cursor, key)
        if value is not None and not key.startswith("tokenizer."):
            metadata[key] = value
    tensors = _tensors(cursor, tensor_count, _alignment(cursor, metadata))
    return GgufHeader(name, metadata, tensors)


def _check_kind(cursor: _Cursor) -> None:
    start = cursor.peek(len(_POINTER))
    if start == _POINTER:
        cursor.fail("is a Git LFS pointer and not the file itself", "fetch it with `git lfs pull`")
    if start[:4] in _OLDER:
        cursor.fail("is in a format older than GGUF", "convert the model again with a current llama.cpp")
    if start[:4] != _MAGIC:
        cursor.fail("is not a GGUF file: it does not begin with GGUF", "give a .gguf file, or a config.json")
    cursor.skip(4)
    version = cursor.u32()
    if version & 0xFFFF == 0 and version:
        cursor.fail("is a big-endian GGUF file", "convert it to little-endian with llama.cpp's gguf_convert_endian.py")
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        cursor.fail(f"has version {version} of GGUF, and {known} are read", "convert it with a current llama.cpp")


def _value(cursor: _Cursor, key: str) -> Any:
    """A value; None where it is too long to be a dimension."""
    kind = cursor.u32()
    if kind in _SCALARS:
        return cursor.scalar(_SCALARS[kind])
    if kind == _TEXT:
        return cursor.text()
    if kind != _ARRAY:
        cursor.fail(f"has a value of unknown type {kind} (key '{key[:60]}')")
    inner, count = cursor.u32(), cursor.u64()
    if inner == _ARRAY:
        cursor.fail(f"has an array of arrays (key '{key[:60]}'), which no writer makes")
    if inner == _TEXT:
        cursor.skip_texts(count, key)
        return None
    if inner not in _SCALARS:
        cursor.fail(f"has an array of unknown type {inner} (key '{key[:60]}')")
    packed = _SCALARS[inner]
    if count > _LONGEST_ARRAY:
        cursor.skip(count * packed.size)
        return None
    return [one for (one,) in packed.iter_unpack(cursor.take(count * packed.size))]


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    found = metadata.get("general.alignment", 32)
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= 1 << 20 or found & (found - 1):
        cursor.fail("has a general.alignment that is no power of two")
    return found


def _tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[GgufTensor, ...]:
    """The table, checked against the size of the file."""
    found: list[GgufTensor] = []
    names: set[str] = set()
    end = 0
    for _ in range(count):
        tensor, offset = _tensor(cursor)
        if tensor.name in names:
            cursor.fail(f"has the tensor '{tensor.name[:60]}' twice")
        names.add(tensor.name)
        if offset % alignment:
            cursor.fail(f"has the tensor '{tensor.name[:60]}' at an offset that is not aligned")
        found.append(tensor)
        end = max(end, offset + tensor.bytes)
    data_start = -(-cursor.position // alignment) * alignment
    missing = data_start + end - cursor.size
    if missing > 0 and found:
        cursor.fail(f"is truncated: {missing:,} bytes of tensors are missing", "download it again")
    return tuple(found)


def _tensor(cursor: _Cursor) -> tuple[GgufTensor, int]:
    name = cursor.name("the name of a tensor")
    dimensions = cursor.u32()
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        cursor.fail(f"has a tensor '{name[:60]}' of {dimensions} dimensions, outside 1 to {_MOST_DIMENSIONS}")
    shape = tuple(cursor.u64() for _ in range(dimensions))
    kind, offset = cursor.u32(), cursor.u64()
    if kind not in GGML_TYPES:
        cursor.fail(
            f"has a tensor '{name[:60]}' of type {kind}, which is not known",
            "it may be of a newer llama.cpp, or of another program; plan the original model with --weights",
        )
    if prod(shape) > _LARGEST_TENSOR or shape[0] % GGML_TYPES[kind].block:
        cursor.fail(f"has a tensor '{name[:60]}' of a shape that {GGML_TYPES[kind].name} cannot have")
    return GgufTensor(name, shape[::-1], GGML_TYPES[kind]), offset


class _Cursor:
    """A position in a file, which moves forward only. Nothing behind the end, or behind the largest header, is read."""

    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self._file, self._file_name, self.size = file, name, size
        self._buffer = b""
        self._at = 0
        self._before = 0  # bytes of the file before the buffer

    @property
    def position(self) -> int:
        return self._before + self._at

    def fail(self, problem: str, remedy: str = _DAMAGED) -> NoReturn:
        raise InvalidConfig(self._file_name, problem, remedy)

    def peek(self, count: int) -> bytes:
        """The next bytes, or fewer at the end of the file."""
        self._fill(min(count, self.size - self.position))
        return self._buffer[self._at : self._at + count]

    def take(self, count: int) -> bytes:
        self._fill(count)
        start, self._at = self._at, self._at + count
        return self._buffer[start : self._at]

    def skip(self, count: int) -> None:
        """Past so many bytes, which need not be in memory at once."""
        self._check(count)
        while count > 0:
            step = min(count, _CHUNK_BYTES)
            self._fill(step)
            self._at += step
            count -= step

    def u32(self) -> int:
        return int(self.scalar(_U32))

    def u64(self) -> int:
        return int(self.scalar(_U64))

    def scalar(self, packed: struct.Struct) -> Any:
        return packed.unpack(self.take(packed.size))[0]

    def count(self, most: int, what: str) -> int:
        found = self.u64()
        if found > most:
            self.fail(f"claims to have {found:,} {what}, more than any model ({most:,})")
        return found

    def name(self, what: str) -> str:
        length = self.u64()
        if not 1 <= length <= _LONGEST_NAME_BYTES:
            self.fail(f"has {what} of {length:,} bytes")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"has {what} that is not text")

    def text(self) -> str | None:
        """A text; None where it is long."""
        length = self.u64()
        if length > _LONGEST_TEXT_BYTES:
            self.skip(length)
            return None
        return self.take(length).decode("utf-8", errors="replace")

    def skip_texts(self, count: int, key: str) -> None:
        """Past an array of texts. There may be half a million, so the loop has little in it."""
        if count * _U64.size > self._allowed:
            self.fail(f"claims to have {count:,} texts in the array '{key[:60]}', more than it has bytes for")
        unpack, width = _U64.unpack_from, _U64.size
        buffer, at = self._buffer, self._at
        for _ in range(count):
            if at + width > len(buffer):
                self._at = at
                self._fill(width)
                buffer, at = self._buffer, self._at
            at += width + unpack(buffer, at)[0]
            if at > len(buffer):
                beyond = at - len(buffer)
                self._at = len(buffer)
                self.skip(beyond)
                buffer, at = self._buffer, self._at
        self._at = at

    @property
    def _allowed(self) -> int:
        """Bytes that may still be read."""
        return min(self.size, _LARGEST_HEADER_BYTES) - self.position

    def _check(self, count: int) -> None:
        if count <= self._allowed:
            return
        if self.position + count > self.size:
            self.fail("is truncated: it ends inside its header", "download it again")
        self.fail(f"has a header of more than {_LARGEST_HEADER_BYTES // MIB} MiB")

    def _fill(self, count: int) -> None:
        """At least so many bytes in the buffer from here on."""
        missing = self._at + count - len(self._buffer)
        if missing <= 0:
            return
        self._check(count)
        wanted = min(max(missing, _CHUNK_BYTES), self.size - self._before - len(self._buffer))
        more = self._file.read(wanted)
        if len(more) < missing:
            self.fail("is truncated: it ends inside its header", "download it again")
        self._before += self._at
        self._buffer = self._buffer[self._at :] + more
        self._at = 0
