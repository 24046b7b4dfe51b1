"""Notes what attention layers ask for, in the place of attending."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class GeometryRecorder:
    """Stands in for every layer while a model is run once to learn what its layers keep."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.nn.Module, int, torch.Tensor, torch.Tensor, int | None]] = []

    def record(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        window: int | None,
    ) -> torch.Tensor:
        _, heads, tokens, _ = query.shape
        self.calls.append((module, heads, key, value, window))
        return query.new_zeros((1, tokens, heads, value.shape[-1]))
