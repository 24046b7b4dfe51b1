"""Media in prompts, on the device: their features, and where these go in the packed row of a step.

`prepare.py` makes a request's `Media` on the host. Here the model's own towers encode it (`towers.py`), one image or
audio at a time and not before a step has tokens of it, and the features replace the embeddings of its tokens. Features
of a part that is split between chunks are kept until its last token has been computed; for a preempted request they are
recomputed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from brim.engine.device.staging import Staging
from brim.engine.media.parts import Features
from brim.engine.media.towers import encode
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import Chunk, StepPlan
from brim.engine.weights.text_model import TextModel


class FeatureSource(Protocol):
    """Where the features of media come from when a step needs them."""

    def of(self, sequence: Sequence, number: int, some: slice, *, last: bool) -> Features:
        """Some features of one part. `last`: no later chunk needs any of that part."""
        ...

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What is held between steps beside what was built."""
        ...

    def forget_ended(self) -> None:
        """Drop the features of requests that have ended or were preempted."""
        ...

    def without(self, running: Collection[Sequence]) -> int:
        """How many requests have features here and are none of these."""
        ...

    def clear(self) -> None: ...


@dataclass(slots=True)
class KeptFeatures:
    """Features of the parts that are split between chunks. The tower runs in the step that needs it."""

    model: Any
    _kept: dict[Sequence, dict[int, Features]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(parts) for parts in self._kept.values())

    @property
    def tensors(self) -> list[torch.Tensor]:
        kept = [features for parts in self._kept.values() for features in parts.values()]
        return [tensor for features in kept for tensor in (features.rows, *features.deep)]

    def of(self, sequence: Sequence, number: int, some: slice, *, last: bool) -> Features:
        """Features of one part, which is kept for the next chunk unless this is the last that needs it."""
        kept = self._kept.get(sequence, {})
        features = kept.pop(number, None)
        if features is None:
            features = encode(self.model, sequence.request.media.parts[number])
        if not last:
            kept[number] = features
            self._kept[sequence] = kept
        elif not kept:
            self._kept.pop(sequence, None)
        return features[some]

    def forget_ended(self) -> None:
        """Drop the features of requests that have ended or were preempted."""
        for sequence in [sequence for sequence in self._kept if sequence.slot is None]:
            del self._kept[sequence]

    def without(self, running: Collection[Sequence]) -> int:
        """How many requests have features here and are none of these."""
        known = {id(sequence) for sequence in running}
        return sum(id(sequence) not in known for sequence in self._kept)

    def clear(self) -> None:
        self._kept.clear()


def place_media(
    text_model: TextModel, tokens: torch.Tensor, plan: StepPlan, source: FeatureSource, staging: Staging
) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """Embeddings of a step with media, and other inputs of the decoder; None for a step without."""
    rows: list[np.ndarray] = []
    found: list[Features] = []
    first_row = plan.decode_rows
    for chunk in plan.chunks:
        if chunk.sequence.request.media is not None:
            for places, features in _of_chunk(chunk, source):
                rows.append(places - chunk.start + first_row)
                found.append(features)
        first_row += chunk.length
    if not found:
        return None, {}
    deep = [number for number, features in enumerate(found) if features.deep]
    where, *deep_rows = staging.send([np.concatenate(some) for some in (rows, [rows[one] for one in deep]) if some])
    embeddings = text_model.embed(tokens)
    embeddings[where] = torch.cat([features.rows for features in found]).to(embeddings.dtype)
    extra = _deep([found[one] for one in deep], deep_rows[0], tokens) if deep else {}
    return embeddings, extra | _per_layer(text_model.backbone, where, tokens)


def _of_chunk(chunk: Chunk, source: FeatureSource) -> Iterator[tuple[np.ndarray, Features]]:
    """For each part with tokens in a chunk: their places in the prompt, and their features."""
    media = chunk.sequence.request.media
    first, end = np.searchsorted(media.places, (chunk.start, chunk.start + chunk.length)).tolist()
    part_start = 0
    for number, part_end in enumerate(media.ends.tolist()):
        here = slice(max(first, part_start), min(end, part_end))
        if here.start < here.stop:
            some = slice(here.start - part_start, here.stop - part_start)
            yield media.places[here], source.of(chunk.sequence, number, some, last=end >= part_end)
        part_start = part_end


def _deep(found: list[Features], where: torch.Tensor, tokens: torch.Tensor) -> dict[str, Any]:
    """Features for the first layers (Qwen3-VL): those of images; an audio beside them has none."""
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[where] = True
    levels = [torch.cat(level) for level in zip(*(features.deep for features in found), strict=True)]
    return {"visual_pos_masks": mask[None], "deepstack_visual_embeds": levels}


def _per_layer(backbone: Any, where: torch.Tensor, tokens: torch.Tensor) -> dict[str, Any]:
    """Inputs of each layer (Gemma 4), which come from the tokens and not from their embeddings."""
    if not getattr(backbone, "hidden_size_per_layer_input", 0):
        return {}
    padded = tokens.index_fill(0, where, backbone.config.pad_token_id)
    return {"per_layer_inputs": backbone.get_per_layer_inputs(padded[None], None)}


def rope_positions(
    plan: StepPlan, places: torch.Tensor, shift: torch.Tensor, decode_slots: torch.Tensor, staging: Staging
) -> torch.Tensor:
    """[3, tokens]: where M-RoPE sees the tokens of a step."""
    decodes = plan.decode_rows
    generating = (places[:decodes] + shift[decode_slots]).expand(3, -1)
    if all(chunk.sequence.request.media is None for chunk in plan.chunks):
        return torch.cat([generating, places[decodes:].expand(3, -1)], dim=1)
    (sent,) = staging.send([np.concatenate([_chunk_positions(chunk) for chunk in plan.chunks], axis=1).ravel()])
    return torch.cat([generating, sent.view(3, -1)], dim=1)


def _chunk_positions(chunk: Chunk) -> np.ndarray:
    """[3, chunk]: from the prompt's own positions as far as it goes, shifted places behind it."""
    end = chunk.start + chunk.length
    media = chunk.sequence.request.media
    if media is None:
        return np.broadcast_to(np.arange(chunk.start, end), (3, chunk.length))
    known = media.positions[:, chunk.start : end]
    behind = np.arange(chunk.start + known.shape[1], end) + media.rope_shift
    return np.concatenate([known, np.broadcast_to(behind, (3, behind.size))], axis=1)
