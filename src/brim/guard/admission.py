"""May this request start now? Exact to the block.

A request is admitted when every pool holds its whole prompt beside what was promised to prompts that are still being
computed, and leaves each running request a block to grow into. What is admitted may still have to give way later: its
answer's length is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """What the policy sees. Blocks are by pool, in the same order everywhere."""

    needed: tuple[int, ...]  # by the whole prompt of the request that asks
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
