"""Notes what attention layers ask for, in the place of attending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_KNOWN = frozenset({"position_ids"})  # rotated into queries and keys already


class GeometryRecorder:
    """Stands in for every layer while a model is run once to learn what its layers keep."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.nn.Module, int, torch.Tensor, torch.Tensor, int | None]] = []
        self.terms: list[tuple[str, str]] = []  # (class of a module, argument): tensors that attention is to take in

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
        """Note what a class hands to its attention beside queries, keys and values: a mask or a bias of its own."""
        self.terms += [
            (type(module).__name__, name)
            for name, value in arguments.items()
            if isinstance(value, torch.Tensor) and name not in _KNOWN
        ]
