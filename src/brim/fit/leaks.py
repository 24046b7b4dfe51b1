"""Memory that an engine does not free when it is torn down: whether it is a leak, and of which kind.

In: readings from before it was built and after it was torn down, and what libraries may keep. Out: a `Residue`, and the
error for one that is too large. The probe knows which tensors hold it.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.errors import DeviceError
from brim.records.fit import FitRequest
from brim.records.memory import MemoryReading
from brim.units import format_bytes


@dataclass(frozen=True, slots=True)
class Residue:
    """What was not freed when an engine was torn down."""

    allocated_bytes: int  # tensors that are still alive
    reserved_bytes: int  # what the allocator still reserves, with tensors in it or without

    @property
    def unused_bytes(self) -> int:
        return self.reserved_bytes - max(0, self.allocated_bytes)


def residue(before: MemoryReading, after_teardown: MemoryReading) -> Residue:
    """What is held now and was not before the engine was built."""
    return Residue(
        after_teardown.allocated_bytes - before.allocated_bytes, after_teardown.reserved_bytes - before.reserved_bytes
    )


def is_leak(left: Residue, request: FitRequest) -> bool:
    """Libraries may keep their workspaces, and the allocator the segments these are in."""
    allowed = request.leak_tolerance_bytes
    return left.allocated_bytes > allowed or left.reserved_bytes > allowed + request.rounding_bytes


def leak_error(left: Residue, request: FitRequest, held: tuple[str, ...]) -> DeviceError:
    """Which of the two it is, and which tensors are alive."""
    holders = "; ".join(held) or "none that Python can reach"
    if left.allocated_bytes > request.leak_tolerance_bytes:
        return DeviceError(
            f"{format_bytes(left.allocated_bytes)} of tensors were not freed when the engine was torn down; drop the "
            f"references to them; largest tensors: {holders}"
        )
    return DeviceError(
        f"{format_bytes(left.reserved_bytes)} stayed reserved by the allocator after the engine was torn down; "
        f"tensors hold {format_bytes(max(0, left.allocated_bytes))} of it; use expandable segments "
        "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or unset it), and check what else this process runs on "
        f"the device; largest tensors: {holders}"
    )


def residue_warning(left: Residue, request: FitRequest) -> str:
    """A warning about memory that stays reserved unused; empty where rounding explains it."""
    if left.unused_bytes <= request.rounding_bytes:
        return ""
    return f"{format_bytes(left.unused_bytes)} stay reserved but unused after the engine is torn down"
