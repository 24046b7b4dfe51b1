"""Which media are encoded together: as much as was run once in the worst batch, and never more.

The cost of a part is the number of elements that the tower reads of it: patches, or frames of audio. Parts of one kind
have the same inputs, of the same sizes but for the first: they are put one behind the other in one call. Audios differ
in length, and each has a call of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from brim.engine.encoders.areas import needed_bytes
from brim.engine.encoders.records import MOST_PARTS, TowerFacts
from brim.engine.media.parts import MediaKind, MediaPart


def kind_of(inputs: Mapping[str, torch.Tensor]) -> str:
    """The kind of media, by the names of a tower's inputs."""
    return " ".join(sorted(inputs))


def elements(inputs: Mapping[str, torch.Tensor]) -> int:
    """What a call of the tower costs for a part."""
    return sum(tensor.numel() for tensor in inputs.values() if tensor.is_floating_point())


def joinable(one: MediaPart, other: MediaPart) -> bool:
    """Whether one call of a tower takes both: never of audio, which is encoded one by one."""
    if one.kind is MediaKind.AUDIO or one.inputs.keys() != other.inputs.keys():
        return False
    pairs = [(tensor, other.inputs[name]) for name, tensor in one.inputs.items()]
    return all(own.shape[1:] == its.shape[1:] and own.dtype == its.dtype for own, its in pairs)


def joined(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The inputs of one call for all of these."""
    if len(parts) == 1:
        return dict(parts[0])
    return {name: torch.cat([inputs[name] for inputs in parts]) for name in parts[0]}


def first_batch(waiting: Iterable[MediaPart], facts: TowerFacts) -> int:
    """How many of the parts that wait, from the first on, make up the next batch; 0: the first is larger than any."""
    first: MediaPart | None = None
    count = cost = rows = size = 0
    for part in waiting:
        inputs = part.inputs
        cost += elements(inputs)
        rows += part.tokens
        size += needed_bytes(inputs)
        fits = cost <= facts.budgets.get(kind_of(inputs), 0) and rows <= facts.rows and size <= facts.input_bytes
        if count == MOST_PARTS or not fits or (first is not None and not joinable(first, part)):
            break
        first = first or part
        count += 1
    return count
