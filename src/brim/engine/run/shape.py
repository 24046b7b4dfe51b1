"""What a runner runs and how large its buffers are, whatever the size of its KV pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brim.engine.attention.protocol import AttentionBackend
from brim.engine.recurrent.states import StateShape
from brim.engine.weights.discover import AttentionLayers
from brim.engine.weights.text_model import TextModel

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class RunnerShape:
    """Sizes that the buffers of a runner follow from."""

    max_batch: int
    max_batch_tokens: int
    max_length: int
    kv_dtype: torch.dtype
    device: torch.device
    graphs: bool
    max_drafted: int = 0  # most requests of a step with drafts
    draft_tokens: int = 0  # of each of them, at most

    @property
    def rows(self) -> int:
        """Rows of every buffer that has one for each request: all slots, and the one for padding."""
        return self.max_batch + 1

    @property
    def most_decode_rows(self) -> int:
        """Rows of decodes in a step: one for each request, and in small batches one for each drafted token."""
        return max(self.max_batch, min(self.max_drafted * (1 + self.draft_tokens), self.max_batch_tokens))


@dataclass(frozen=True, slots=True, eq=False)
class RunnerModel:
    """A model, and how its layers attend and keep what they have seen."""

    text_model: TextModel
    layers: AttentionLayers
    states: tuple[StateShape, ...]  # of recurrent layers
    shape: RunnerShape
    make_backend: Callable[[], AttentionBackend]
    mrope: bool = False  # positions of images in three dimensions
    ahead_in_windows_only: bool = False  # tokens of an image attend in both directions in layers with a window
