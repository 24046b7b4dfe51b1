"""What an engine leaves behind when it is torn down: what of that is a leak, and which kind.

In: readings from before it was built and after it was torn down, and what libraries may keep. Out: a `Residue`, and the
words for one that is too large. What holds it, a probe knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.errors import DeviceError
from brim.records.fit import FitRequest
from brim.records.memory import MemoryReading
from brim.units import format_bytes


@dataclass(frozen=True, slots=True)
class Residue:
    """What did not go back when an engine was torn down."""

    allocated_bytes: int  # tensors that live on
    reserved_bytes: int  # what the allocator holds on to, with tensors in it or without

    @property
    def unused_bytes(self) -> int:
        return self.reserved_bytes - max(0, self.allocated_bytes)


def residue(before: MemoryReading, after_teardown: MemoryReading) -> Residue:
    """What is held now and was not before the engine was built."""
    return Residue(
        after_teardown.allocated_bytes - before.allocated_bytes, after_teardown.reserved_bytes - before.reserved_bytes
    )


def is_leak(left: Residue, request: FitRequest) -> bool:
    """Libraries may keep their workspaces, and the allocator the rest of the segments that these lie in."""
    allowed = request.leak_tolerance_bytes
    return left.allocated_bytes > allowed or left.reserved_bytes > allowed + request.rounding_bytes


def leak_error(left: Residue, request: FitRequest, held: tuple[str, ...]) -> DeviceError:
    """Which of the two it is, and what is still held."""
    holders = "; ".join(held) or "nothing that Python knows of"
    if left.allocated_bytes > request.leak_tolerance_bytes:
        return DeviceError(
            f"{format_bytes(left.allocated_bytes)} of tensors did not go back to the device when the engine was torn "
            f"down; still held: {holders}"
        )
    return DeviceError(
        f"{format_bytes(left.reserved_bytes)} stayed reserved by the allocator and did not go back to the device when "
        f"the engine was torn down, though tensors hold {format_bytes(max(0, left.allocated_bytes))} of it; let its "
        "segments grow (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or unset), and see what else this process "
        f"runs on the device; largest tensors: {holders}"
    )


def residue_warning(left: Residue, request: FitRequest) -> str:
    """A word on what stays reserved for nothing; empty where rounding explains it."""
    if left.unused_bytes <= request.rounding_bytes:
        return ""
    return f"{format_bytes(left.unused_bytes)} stay reserved when the engine is torn down, unused"
