"""Whether a request can be admitted now. Exact to the block.

A request is admitted when every pool has blocks for its whole prompt, in addition to those promised to prompts in
prefill and one block for each running request to grow into. An admitted request may still be preempted later: the
length of its answer is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """What the policy sees. Blocks are by pool, in the same order everywhere."""

    needed: tuple[int, ...]  # for the whole prompt of the waiting request, without blocks that others hold already
    available: tuple[int, ...]
    promised: tuple[int, ...]  # to admitted prompts, and not taken yet
    running: int
    free_slots: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Yes or no, and why."""

    admit: bool
    reason: str


def admit(view: AdmissionView) -> Decision:
    """Admit by blocks, to the block."""
    if view.free_slots == 0:
        return Decision(False, f"all {view.running} slots are taken")
    for pool, (needed, available, promised) in enumerate(zip(view.needed, view.available, view.promised, strict=True)):
        room = available - promised - view.running
        if needed > room and view.running:
            return Decision(False, f"pool {pool}: needs {needed} blocks, {max(room, 0)} are left")
        if needed > available:
            return Decision(False, f"pool {pool}: needs {needed} blocks, {available} are free")
    return Decision(True, "fits")
