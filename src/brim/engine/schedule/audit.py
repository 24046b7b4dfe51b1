"""Whether requests, slots and blocks agree while no step is being planned or launched."""

from __future__ import annotations

from brim.engine.kv.audit import ledger_problems
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.scheduler import Scheduler
from brim.units import ceil_div


def scheduler_problems(scheduler: Scheduler) -> list[str]:
    """Everything that is inconsistent; nothing where all is well."""
    running, size = scheduler.running, scheduler.ledger.block_size
    found = [f"{_name(one)} runs and holds no blocks" for one in running if one.blocks is None or one.slot is None]
    holding = [one for one in scheduler.waiting if one.blocks is not None or one.slot is not None]
    found += [f"{_name(one)} waits and holds blocks or a slot" for one in holding]
    found += [problem for one in running for problem in _table_problems(one, size)]
    slots = sorted([one.slot for one in running if one.slot is not None] + scheduler.batch.free_slots)
    if slots != list(range(scheduler.limits.max_batch)):
        found.append(f"slots {slots} are taken or free; each of {scheduler.limits.max_batch} must be, once")
    found += [f"{_name(one)} runs and has a copy in host memory" for one in running if one.host_copy is not None]
    copies = [one.host_copy for one in scheduler.waiting if one.host_copy is not None]
    found += scheduler.host_copies.room.problems(copies)
    found += scheduler.batch.snapshot_problems()
    return found + ledger_problems(scheduler.ledger, [one.blocks for one in running if one.blocks is not None])


def _table_problems(sequence: Sequence, block_size: int) -> list[str]:
    if sequence.blocks is None:
        return []
    found = []
    if sequence.blocks.slot != sequence.slot:
        found.append(f"{_name(sequence)} is in slot {sequence.slot}, its blocks in {sequence.blocks.slot}")
    if not 0 <= sequence.computed <= sequence.length:
        found.append(f"{_name(sequence)} has {sequence.length} tokens, {sequence.computed} of them computed")
    needed = ceil_div(sequence.computed, block_size)
    if any(len(table) < needed for table in sequence.blocks.tables):
        found.append(f"{_name(sequence)} has computed {sequence.computed} tokens and holds too few blocks")
    return found


def _name(sequence: Sequence) -> str:
    return f"request {sequence.request.id}"
