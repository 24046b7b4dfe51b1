"""A piece of a GPU's memory that two processes see.

It is allocated by `cudaMalloc` itself and not by torch: torch's segments grow here, and memory that is mapped piece by
piece cannot be opened by another process through `cudaIpcGetMemHandle`. Sharing is refused in some containers, under
WSL and between some GPUs: an engine finds out by trying, and falls back to shared memory of the host.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from brim.errors import DeviceError

_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class _DeviceBytes:
    """Memory at an address, as torch takes it over without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


class SharedBuffer:
    """Bytes on a GPU: made here, or opened from another process."""

    def __init__(self, address: int, size: int, device: torch.device, handle: bytes, *, opened: bool) -> None:
        self.handle = handle
        self._address = address
        self._device = device
        self._opened = opened
        with torch.cuda.device(device):
            self._bytes: torch.Tensor | None = torch.as_tensor(_DeviceBytes(address, size), device=device)

    @classmethod
    def make(cls, size: int, device: torch.device) -> SharedBuffer:
        pointer, handle = ctypes.c_void_p(), _Handle()
        with torch.cuda.device(device):
            _call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(size))
            _call("cudaIpcGetMemHandle", ctypes.byref(handle), pointer)
        return cls(int(pointer.value or 0), size, device, ctypes.string_at(ctypes.byref(handle), 64), opened=False)

    @classmethod
    def open(cls, handle: bytes, size: int, device: torch.device) -> SharedBuffer:
        pointer, given = ctypes.c_void_p(), _Handle()
        ctypes.memmove(ctypes.byref(given), handle, 64)
        with torch.cuda.device(device):
            _call("cudaIpcOpenMemHandle", ctypes.byref(pointer), given, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return cls(int(pointer.value or 0), size, device, handle, opened=True)

    @property
    def bytes(self) -> torch.Tensor:
        assert self._bytes is not None, "a buffer is not used after it was closed"
        return self._bytes

    def close(self) -> None:
        if self._bytes is None:
            return
        self._bytes = None
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            _call("cudaIpcCloseMemHandle" if self._opened else "cudaFree", ctypes.c_void_p(self._address))


def _call(name: str, *arguments: Any) -> None:
    code = int(getattr(_runtime(), name)(*arguments))
    if code:
        _runtime().cudaGetLastError()  # the next call of torch must not find it
        raise DeviceError(f"{name} failed with CUDA error {code}")


@cache
def _runtime() -> ctypes.CDLL:
    """The CUDA runtime that torch has loaded: a second one would have a state of its own."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libcudart" in path:
            return ctypes.CDLL(path)
    raise DeviceError("no CUDA runtime is loaded in this process")
