"""torch's out-of-memory errors as Brim's `OutOfMemory`: the one place where they are translated.

In: `torch.OutOfMemoryError` (CUDA's, or `CpuProbe`'s), and what libraries under torch raise when an allocation fails.
Out: `OutOfMemory`, with the shortfall where the message states it. CUDA prints sizes with two decimals, so the
shortfall is exact to a hundredth of a GiB.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from brim.errors import OutOfMemory
from brim.units import GIB, KIB, MIB, format_bytes

_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_ASKED = re.compile(rf"[Tt]ried to allocate {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free")
_ALLOWED = re.compile(rf"{_SIZE} allowed")  # where the process may have a fraction of the device
_ALLOCATED = re.compile(rf"Of the allocated memory {_SIZE} is allocated")
_UNUSED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_UNDER_TORCH = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator",  # the machine's own memory
)


@contextmanager
def translated() -> Iterator[None]:
    """Raise `OutOfMemory` where torch would raise its own error.

    The frames of the traceback are cleared: they would keep their tensors alive as long as the error, and its handler
    needs the memory.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)
        raise out_of_memory(str(error)) from error
    except RuntimeError as error:
        if not any(words in str(error) for words in _UNDER_TORCH):
            raise
        traceback.clear_frames(error.__traceback__)
        raise out_of_memory(str(error)) from error


def out_of_memory(message: str) -> OutOfMemory:
    """The error for torch's message."""
    asked, free = _bytes(_ASKED, message), _free_bytes(message)
    remedy = "use a smaller batch or fewer tokens per step, or stop other processes on the device"
    if asked is None or free is None:
        first = message.strip().splitlines()[0][:160] if message.strip() else "no figures given"
        return OutOfMemory(f"the device is out of memory ({first}); {remedy}")
    return OutOfMemory(
        f"the device is out of memory: {format_bytes(asked)} requested, {format_bytes(free)} free; {remedy}",
        missing_bytes=asked - free if asked > free else None,  # fragmented: the shortfall is unknown
    )


def _free_bytes(message: str) -> int | None:
    free = _bytes(_FREE, message)
    allowed = _bytes(_ALLOWED, message)
    if free is None or allowed is None:
        return free
    reserved = (_bytes(_ALLOCATED, message) or 0) + (_bytes(_UNUSED, message) or 0)
    return min(free, max(0, allowed - reserved))


def _bytes(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None
