"""Faults on purpose, for demonstrations and for tests of operations: never on unless somebody asks for them.

A fault is asked before each launch, and what it raises the launch raises, as if the device had refused an allocation.
All that follows is real: the step is run again in parts, and the request that cannot run alone ends
(`brim.engine.rescue`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from brim.engine.run.runner import Fault
from brim.engine.schedule.plan import StepPlan
from brim.errors import OutOfMemory

if TYPE_CHECKING:
    from brim.engine.engine import Engine


@contextmanager
def failing_launches(engine: Engine, fault: Fault) -> Iterator[None]:
    """Ask a fault about every step that is launched in here, whatever size the engine is built at."""
    runner = engine.model.runner
    before, runner.fault = runner.fault, fault
    try:
        yield
    finally:
        runner.fault = before


def fail_long_prompts(engine: Engine, prompt_tokens: int) -> None:
    """From now on, prompts of so many tokens or more run out of memory on this engine."""

    def refuse(plan: StepPlan) -> None:
        longest = max((len(sequence.request.prompt) for sequence in plan.sequences), default=0)
        if longest >= prompt_tokens:
            raise OutOfMemory(f"out of memory, injected: a prompt of {longest} tokens is in the step")

    engine.model.runner.fault = refuse
