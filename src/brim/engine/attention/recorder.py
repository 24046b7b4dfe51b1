"""Records the arguments of attention layers instead of computing attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_KNOWN = frozenset({"position_ids"})  # rotated into queries and keys already


class GeometryRecorder:
    """Replaces attention in every layer while a model runs once to find out what its layers cache."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.nn.Module, int, torch.Tensor, torch.Tensor, int | None]] = []
        self.terms: list[tuple[str, str]] = []  # (class of a module, argument): extra tensors passed to attention

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

    def note_terms(self, module: torch.nn.Module, arguments: Mapping[str, Any]) -> None:
        """Record what a class passes to attention besides queries, keys and values: a mask or a bias of its own."""
        self.terms += [
            (type(module).__name__, name)
            for name, value in arguments.items()
            if isinstance(value, torch.Tensor) and name not in _KNOWN
        ]
