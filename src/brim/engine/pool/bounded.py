"""Steps within what a fit has proven, on a device whose budget is not counted while serving (`brim.probes.proven`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brim.engine.kv.ledger import KvLedger
from brim.engine.loop import StepRunner
from brim.engine.run.launched import Launched
from brim.engine.schedule.plan import StepPlan

if TYPE_CHECKING:
    from brim.probes.proven import ProvenBound


@dataclass(frozen=True, slots=True)
class BoundedRunner:
    """Runs steps, but for those that the bound refuses: they run out of memory like any other."""

    runner: StepRunner
    bound: ProvenBound

    def launch(self, plan: StepPlan, ledger: KvLedger) -> Launched:
        self.bound.check(plan.tokens)
        return self.runner.launch(plan, ledger)

    def accept(self, launched: Launched) -> None:
        self.runner.accept(launched)

    def go_on_from(self, tokens: Mapping[int, int]) -> None:
        self.runner.go_on_from(tokens)
