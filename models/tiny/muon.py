"""Muon: momentum whose directions all count alike.

The averaged gradient of a matrix is replaced by the nearest one with orthogonal rows or columns, found by a few steps
of a polynomial in it. Matrices of one shape are computed together, which is most of the speed at this size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch

_POLYNOMIAL = (3.4445, -4.7750, 2.0315)  # steep at zero: singular values come near 1 in five steps
_STEPS = 5
_LIKE_ADAM = 0.2  # size of an entry of Adam's updates: with it, both take the same learning rate


class Muon(torch.optim.Optimizer):
    """For matrices only; embeddings and norms are another optimiser's."""

    def __init__(self, matrices: Iterable[torch.Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    shapes[matrix.shape].append(matrix)
            for matrices in shapes.values():
                self._step_together(matrices, group["lr"], group["momentum"], group["weight_decay"])

    def _step_together(self, matrices: list[torch.Tensor], rate: float, momentum: float, weight_decay: float) -> None:
        averages = [self.state[matrix].setdefault("average", torch.zeros_like(matrix)) for matrix in matrices]
        gradients = [matrix.grad for matrix in matrices]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, averages, momentum)  # Nesterov's look ahead
        updates = orthogonal(torch.stack(ahead)).to(matrices[0].dtype).unbind()
        torch._foreach_mul_(matrices, 1 - rate * weight_decay)
        torch._foreach_add_(matrices, updates, alpha=-rate * _LIKE_ADAM * max(matrices[0].shape) ** 0.5)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """The nearest orthogonal matrices, roughly. In bf16 on a GPU."""
    a, b, c = _POLYNOMIAL
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(torch.bfloat16 if x.is_cuda else x.dtype)
    for _ in range(_STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x
