"""The results of a step that was launched and is not read yet: held while the next one runs.

In: the steps of which one has the fullest results. Each is run once, to learn their sizes; from then on, blank memory
of the largest stands for them, so that no worst step has to be run after another one. Knows nothing of what they say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from brim.engine.kv.ledger import KvLedger
from brim.engine.run.runner import Runner
from brim.engine.stress.text import text_step
from brim.records.memory import StressShape


@dataclass(slots=True)
class UnreadResults:
    """The fullest results of an engine's steps."""

    sizes: tuple[int, ...] = ()  # of the storages that hold them on the device
    learned: dict[StressShape, int] = field(default_factory=dict)  # tokens that its step had: a small pool cuts it

    def learn(self, shape: StressShape, runner: Runner, ledger: KvLedger, max_length: int) -> None:
        """Run the step, unless that has been done."""
        if self.learned.get(shape, 0) >= shape.tokens:
            return
        with text_step(shape, runner, ledger, max_length) as plan:
            launched = runner.launch(plan, ledger)
        storages = (tensor.untyped_storage() for tensor in launched.on_device(runner.shape.device))
        found = tuple({storage._cdata: storage.nbytes() for storage in storages}.values())
        self.sizes = max(self.sizes, found, key=sum)
        self.learned[shape] = plan.tokens

    def blank(self, device: torch.device) -> list[torch.Tensor]:
        """As much memory as they take."""
        return [torch.empty(size, dtype=torch.uint8, device=device) for size in self.sizes]
