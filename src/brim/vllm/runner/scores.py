"""Scores of a prompt that is longer than a step, as they wait on the device for its last chunk.

The V2 runner keeps the scores of all chunks there, and joins them after the last one. A worst step runs that chunk
only, so the memory of the others is held meanwhile. The V1 runner keeps scores on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from brim.vllm.runner.steps import Step


@contextmanager
def earlier_scores(step: Step, score_bytes: int, device: Any) -> Iterator[None]:
    """Hold the scores of what is scored and computed before this step; `score_bytes` are those of one token."""
    import torch

    scored = [row for row in step.rows if row.scored]
    earlier, new = sum(row.past for row in scored), sum(row.new for row in scored)
    held = torch.empty(earlier * score_bytes, dtype=torch.uint8, device=device)
    yield
    if earlier:
        at_the_join = 2 * (earlier + new)  # every chunk's, and all of them in one
        torch.empty((at_the_join - earlier) * score_bytes, dtype=torch.uint8, device=device)
    del held
