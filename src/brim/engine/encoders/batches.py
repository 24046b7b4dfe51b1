"""Which media are encoded together: as much as was run once in the worst batch, and never more.

The cost of a part is the number of elements that the tower reads of it: patches, or frames of audio. Parts of one kind
have the same inputs, of the same sizes but for the first: they are put one behind the other in one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from brim.engine.encoders.areas import needed_bytes
from brim.engine.encoders.records import MOST_PARTS, TowerFacts

if TYPE_CHECKING:
    from brim.engine.media.parts import MediaPart


def kind_of(inputs: Mapping[str, torch.Tensor]) -> str:
    """The kind of media, by the names of a tower's inputs."""
    return " ".join(sorted(inputs))


def elements(inputs: Mapping[str, torch.Tensor]) -> int:
    """What a call of the tower costs for a part."""
    return sum(tensor.numel() for tensor in inputs.values() if tensor.is_floating_point())


def joinable(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        tensor.shape[1:] == other[name].shape[1:] and tensor.dtype == other[name].dtype for name, tensor in one.items()
    )


def joined(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The inputs of one call for all of these."""
    if len(parts) == 1:
        return dict(parts[0])
    return {name: torch.cat([inputs[name] for inputs in parts]) for name in parts[0]}


def first_batch(waiting: Iterable[MediaPart], facts: TowerFacts) -> int:
    """How many of the parts that wait, from the first on, make up the next batch; 0: the first is larger than any."""
    first: Mapping[str, torch.Tensor] | None = None
    count = cost = rows = size = 0
    for part in waiting:
        inputs = part.inputs
        first = first or inputs
        cost += elements(inputs)
        rows += part.tokens
        size += needed_bytes(inputs)
        fits = cost <= facts.budgets.get(kind_of(inputs), 0) and rows <= facts.rows and size <= facts.input_bytes
        if count == MOST_PARTS or not fits or not joinable(first, inputs):
            break
        count += 1
    return count
