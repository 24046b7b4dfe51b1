"""An out-of-memory on purpose, for demonstrations and for tests of operations: never on unless somebody asks for it.

Steps that hold a request with a long prompt fail at their launch, as if the device had refused an allocation. All that
follows is real: the step is run again in parts, and the request that cannot run alone ends (`brim.engine.rescue`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brim.engine.kv.ledger import KvLedger
from brim.engine.loop import StepRunner
from brim.engine.run.launched import Launched
from brim.engine.schedule.plan import StepPlan
from brim.errors import OutOfMemory

if TYPE_CHECKING:
    from brim.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class FailingRunner:
    """Runs steps, but for those with a prompt of so many tokens."""

    runner: StepRunner
    prompt_tokens: int

    def launch(self, plan: StepPlan, ledger: KvLedger) -> Launched:
        longest = max((len(sequence.request.prompt) for sequence in plan.sequences), default=0)
        if longest >= self.prompt_tokens:
            raise OutOfMemory(f"out of memory, injected: a prompt of {longest} tokens is in the step")
        return self.runner.launch(plan, ledger)

    def accept(self, launched: Launched) -> None:
        self.runner.accept(launched)

    def go_on_from(self, tokens: Mapping[int, int]) -> None:
        self.runner.go_on_from(tokens)


def fail_long_prompts(engine: Engine, prompt_tokens: int) -> None:
    """From now on, prompts of so many tokens or more run out of memory on this engine."""
    engine.loop.runner = FailingRunner(engine.loop.runner, prompt_tokens)
