"""One step, as the device sees it: where its tokens are and which blocks they read and write.

Tokens are packed in one row: first one for each decode, then the prefill chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """A chunk of a request's tokens in the packed row."""

    start: int  # its first token's place in the row
    length: int
    slot: int
    context: int  # tokens of the request computed before; 0: it starts from nothing


@dataclass(frozen=True, slots=True, eq=False)
class PackedLayout:
    """Where each request's tokens lie in the row: one each for `decodes` requests, then the chunks."""

    decodes: int
    chunks: tuple[ChunkPlace, ...]
    decode_slots: torch.Tensor  # int64 [decodes]


@dataclass(frozen=True, slots=True, eq=False)
class StepLayout(PackedLayout):
    """The layout with what attention needs of it. Tensors are on the model's device; rows of block tables are slots."""

    decode_lengths: torch.Tensor  # int32 [decodes]: tokens of each request, the new one included
    chunk_slots: torch.Tensor  # int64 [chunks]
    chunk_starts: torch.Tensor  # int32 [chunks + 1]: first token of each chunk, counted from the first chunk
    chunk_lengths: torch.Tensor  # int32 [chunks]: tokens of each request after the chunk
    write_slots: tuple[torch.Tensor, ...]  # by group: int64 [tokens]
    longest_chunk: int
    visible_until: torch.Tensor | None  # int32 [tokens of chunks]: last position a query sees, where not its own
    shared: dict[Any, Any] = field(default_factory=dict)  # what a backend computes for all layers; gone with the step
