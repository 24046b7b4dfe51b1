"""The training loop, the same for the model and its draft: Muon for the matrices, AdamW for the rest.

The rate rises for a moment, stays, and falls in a straight line to nothing over the last part.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from models.tiny.batches import Batch
from models.tiny.muon import Muon

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_WARM_UP_STEPS = 100
_FALLING_SHARE = 0.6
_SHOWN_EVERY = 100


@dataclass(frozen=True, slots=True)
class Course:
    """How a training went."""

    steps: int
    tokens: int
    seconds: float
    first_step_seconds: float  # of them: most of it compiling
    losses: tuple[tuple[int, float], ...]


def learning_rate(step: int, steps: int) -> float:
    """As a share of the highest."""
    rising = (step + 1) / min(_WARM_UP_STEPS, max(1, steps // 10))
    falling = (steps - step) / (steps * _FALLING_SHARE)
    return min(1.0, rising, falling)


def optimisers(model: torch.nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if not (p.ndim == 2 and "embed" not in name)]
    return [
        Muon(matrices, lr=rate, weight_decay=0.05),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def optimise(model: torch.nn.Module, loss_of: Loss, source: Iterator[Batch], steps: int, rate: float) -> Course:
    """Train until the steps are done. `loss_of` takes the tokens of a batch and which of them the assistant says."""
    chosen = optimisers(model, rate)
    started, first_step, tokens = time.perf_counter(), 0.0, 0
    losses: list[tuple[int, float]] = []
    for step, (ids, said) in enumerate(source):
        for group in (group for optimiser in chosen for group in optimiser.param_groups):
            group["lr"] = rate * learning_rate(step, steps)
        loss = loss_of(ids, said)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in chosen:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        tokens += ids.shape[0] * (ids.shape[1] - 1)
        if step == 0:
            loss.item()
            first_step = time.perf_counter() - started
        if step % _SHOWN_EVERY == 0 or step == steps - 1:
            losses.append((step, round(loss.item(), 4)))
            seconds = time.perf_counter() - started
            line = f"step {step} of {steps}, loss {losses[-1][1]}, {tokens / seconds:,.0f} tokens/s, {seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)
    return Course(steps, tokens, time.perf_counter() - started, first_step, tuple(losses))
