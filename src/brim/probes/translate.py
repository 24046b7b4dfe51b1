"""torch's out-of-memory errors as Brim's `OutOfMemory`: the one place where they are translated.

In: `torch.OutOfMemoryError` (CUDA's, or `CpuProbe`'s), what libraries under torch raise when an allocation fails, and
errors that were raised because of one of these.
Out: `OutOfMemory`, with the shortfall where the message states it. CUDA prints sizes with two decimals, so the
shortfall is exact to a hundredth of a GiB.
"""

from __future__ import annotations

import re
import sys
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
    handled = sys.exception()  # before this began: what is raised in its handling has a cause of its own
    try:
        yield
    except RuntimeError as error:
        chain = list(_chain(error, handled))
        refused = next((str(one) for one in chain if is_refusal(one)), None)
        if refused is None:
            raise
        for one in chain:
            traceback.clear_frames(one.__traceback__)
        raise out_of_memory(refused) from error


def _chain(error: BaseException, last: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it was raised from or in the handling of, up to one of before."""
    found: BaseException | None = error
    while found is not None and found is not last:
        yield found
        found = found.__cause__ or found.__context__


def is_refusal(error: BaseException) -> bool:
    """Whether an error says that an allocation failed."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _UNDER_TORCH)


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
