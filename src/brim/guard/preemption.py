"""What becomes of a preempted request: its blocks are kept in host memory, or it is recomputed.

In: what it has computed, in tokens and bytes, what the host has room for, and what this machine does in a second
(`PreemptionRates`, measured once). Out: a `Choice`. Blocks are kept where copying them to the host and back takes less
time than computing the tokens again.

The time to compute is estimated at the rate of a step without a past: attention to a long past takes longer than that,
so the longest requests are kept a little less often than they could be. Knows nothing of devices or of the arena.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from brim.units import format_bytes


@dataclass(frozen=True, slots=True)
class PreemptionRates:
    """What a machine does in a second. Integers, so that ranks can be given the same ones."""

    out_bytes: int  # copied from the device to the host
    back_bytes: int  # copied from the host to the device
    prefill_tokens: int  # computed, of prompts

    def __post_init__(self) -> None:
        assert min(self.out_bytes, self.back_bytes, self.prefill_tokens) > 0, "a rate is above zero"


@dataclass(frozen=True, slots=True)
class PreemptionView:
    """What the policy sees of a request that is being preempted."""

    tokens: int  # that would be recomputed
    out_bytes: int  # of everything that it holds
    back_bytes: int  # of what is copied back: the rest is held by others too
    room_bytes: int  # the largest copy that the host has room for


class PreemptionAction(StrEnum):
    """What decided about a preempted request."""

    KEPT = "kept"
    DEARER = "dearer"  # than computing it again
    ROOM = "room"
    NOTHING = "nothing"  # it has computed nothing that would be lost


@dataclass(frozen=True, slots=True)
class PreemptionChoice:
    """Whether a request's blocks are kept, and the numbers that decided it."""

    fate: PreemptionAction
    view: PreemptionView
    copy_seconds: float
    compute_seconds: float

    @property
    def keep(self) -> bool:
        return self.fate is PreemptionAction.KEPT

    @property
    def reason(self) -> str:
        view = self.view
        match self.fate:
            case PreemptionAction.NOTHING:
                return "nothing of it would be recomputed"
            case PreemptionAction.ROOM:
                room = format_bytes(view.room_bytes)
                return f"its {format_bytes(view.out_bytes)} do not fit: {room} of host memory are free"
            case PreemptionAction.KEPT | PreemptionAction.DEARER:
                return (
                    f"{format_bytes(view.out_bytes)} are copied out and back in {_milliseconds(self.copy_seconds)}, "
                    f"{view.tokens} tokens computed in {_milliseconds(self.compute_seconds)}"
                )


def keep_or_compute(view: PreemptionView, rates: PreemptionRates) -> PreemptionChoice:
    """Keep what fits and is cheaper to copy, out and back, than to compute again."""
    copying = view.out_bytes / rates.out_bytes + view.back_bytes / rates.back_bytes
    computing = view.tokens / rates.prefill_tokens
    return PreemptionChoice(_fate(view, copying, computing), view, copying, computing)


def _fate(view: PreemptionView, copying: float, computing: float) -> PreemptionAction:
    if view.tokens <= 0:
        return PreemptionAction.NOTHING
    if copying >= computing:
        return PreemptionAction.DEARER
    return PreemptionAction.KEPT if view.out_bytes <= view.room_bytes else PreemptionAction.ROOM


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
