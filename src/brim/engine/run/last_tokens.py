"""The last token of every request, kept on the device, so that a step can be launched before the last one was read.

In: what accepted steps drew, and the tokens of steps with drafts, which are known when they have been read. Out: a row
for each slot. What a step drew is written there by the next launch, and not before: that step might have failed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from brim.engine.device.staging import Staging
from brim.engine.run.launched import Drawn, Launched
from brim.engine.run.sampling.sampler import Sampled


class LastTokens:
    """By slot: the token that the next step of a request computes."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows = torch.zeros(rows, dtype=torch.int64, device=device)
        self._accepted: Drawn | None = None  # by the last step that counts
        self._corrections: dict[int, int] = {}  # by slot: the last token, where a step with drafts was the last

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What is held between steps."""
        return [] if self._accepted is None else self._accepted.tensors

    def accept(self, launched: Launched) -> None:
        """This step counts: the next one goes on from what it drew."""
        if launched.plan.drafts:
            self._accepted = None  # the accepted tokens are known when it has been read
        elif launched.drawn is not None:
            self._accepted = launched.drawn

    def accept_all(self, launched: Launched, staging: Staging) -> None:
        """This step counts, and so do all of its drafts: the next one goes on from what the last rows drew."""
        plan = launched.plan
        if not plan.drafts or launched.drawn is None:
            self.accept(launched)
            return
        drawing = [*plan.slots, *(chunk.slot for chunk in plan.chunks if chunk.draws)]
        rows, slots = staging.send([np.array(numbers, dtype=np.int64) for numbers in (plan.last_rows, drawing)])
        self._accepted = Drawn(Sampled(launched.drawn.sampled.tokens[rows]), slots)

    def forget_drawn(self) -> None:
        """No step goes on from what was drawn."""
        self._accepted = None

    def correct(self, tokens: Mapping[int, int]) -> None:
        """By slot, the last token of requests of a step with drafts, which has been read."""
        self._corrections.update(tokens)

    def take_over(self, staging: Staging) -> None:
        """Write what the last step drew, for the one that is being launched."""
        if self._accepted is not None:
            self.rows[self._accepted.slots] = self._accepted.sampled.tokens
        if self._corrections:
            known = [np.array([*part], dtype=np.int64) for part in (self._corrections, self._corrections.values())]
            slots, tokens = staging.send(known)
            self.rows[slots] = tokens
            self._corrections.clear()
