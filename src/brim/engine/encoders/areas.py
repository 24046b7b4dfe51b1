"""Shared memory without a name: two processes map it, and it is gone when both are, however they end.

An engine makes an area and passes its descriptor on; the encoder decides how large it is. Tensors lie in it one after
the other, and a description in a message says where each is (`write_tensors`, `read_tensors`).
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import torch

from brim.units import round_up

_ALIGNED = 64
_TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.uint8,
        torch.int8,
        torch.bool,
    )
}


class Area:
    """A piece of shared memory, by the descriptor of a file that is in no folder."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._bytes: torch.Tensor | None = None

    @classmethod
    def make(cls) -> Area:
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("brim-encoder"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def resize(self, size: int) -> None:
        """Before anybody looks at it."""
        os.ftruncate(self.descriptor, max(1, size))

    @property
    def bytes(self) -> torch.Tensor:
        """All of it."""
        if self._bytes is None:
            size = os.fstat(self.descriptor).st_size
            self._bytes = torch.frombuffer(mmap.mmap(self.descriptor, size), dtype=torch.uint8)
        return self._bytes

    def close(self) -> None:
        """Its memory is freed when the last tensor in it is."""
        self._bytes = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def needed_bytes(inputs: Mapping[str, torch.Tensor]) -> int:
    """What tensors take in an area."""
    return sum(round_up(tensor.nbytes, _ALIGNED) for tensor in inputs.values())


def write_tensors(area: Area, inputs: Mapping[str, torch.Tensor], start: int) -> tuple[list[dict[str, Any]], int]:
    """Copy tensors of the host into an area from `start` on; where they lie, and where the next may begin."""
    described = []
    for name, tensor in inputs.items():
        described.append({"name": name, "dtype": type_name(tensor.dtype), "shape": list(tensor.shape), "start": start})
        area.bytes[start : start + tensor.nbytes] = tensor.contiguous().view(-1).view(torch.uint8)
        start += round_up(tensor.nbytes, _ALIGNED)
    return described, start


def read_tensors(area: Area, described: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The tensors that a description says, as they lie in the area."""
    return {str(one["name"]): _tensor(area.bytes, one) for one in described}


def _tensor(memory: torch.Tensor, one: Mapping[str, Any]) -> torch.Tensor:
    kind, shape, start = type_of(one["dtype"]), [int(side) for side in one["shape"]], int(one["start"])
    size = kind.itemsize
    for side in shape:
        size *= side
    if start < 0 or min(shape, default=1) < 0 or start + size > memory.numel():
        raise ValueError(f"a tensor of {size} bytes at {start} is not in the area of {memory.numel()}")
    return memory[start : start + size].view(kind).view(shape)


def type_name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def type_of(name: Any) -> torch.dtype:
    if name not in _TYPES:
        raise ValueError(f"'{name}' is no type of a tensor")
    return _TYPES[name]
