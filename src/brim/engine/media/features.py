"""Images in prompts, on the device: their features, and where these go in the packed row of a step.

`prepare.py` makes a request's `Media` on the host. Here the model's own tower encodes pixels, one image at a time and
not before a step has tokens of it, and the features replace the embeddings of its tokens. Features of an image that is
split between chunks are kept until its last token has been computed; for a preempted request they are computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from brim.engine.device.staging import Staging
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import Chunk, StepPlan
from brim.engine.weights.text_model import TextModel


@dataclass(frozen=True, slots=True, eq=False)
class ImagePart:
    """The input of one call of the tower (an image, or a tile of one), on the host, and its number of tokens."""

    inputs: Mapping[str, torch.Tensor]
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """The images of a prompt, on the host."""

    parts: tuple[ImagePart, ...]
    places: np.ndarray  # int64: the place in the prompt of every image token, in order
    positions: np.ndarray | None = None  # int64 [3, prompt]: where M-RoPE sees each token of the prompt
    rope_shift: int = 0  # what is added to the place of a token behind the prompt
    digests: tuple[bytes, ...] = ()  # of what each part shows

    @property
    def ends(self) -> np.ndarray:
        """Image tokens up to the end of each part."""
        return np.cumsum([part.tokens for part in self.parts])


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """The output of a tower for a part: a row for each of its tokens."""

    rows: torch.Tensor
    deep: tuple[torch.Tensor, ...] = ()  # what is added to the first layers' output at the same places

    def __getitem__(self, some: slice) -> Features:
        return Features(self.rows[some], tuple(level[some] for level in self.deep))


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
            features = image_features(self.model, sequence.request.media.parts[number])
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


def image_features(model: Any, part: ImagePart) -> Features:
    """Run the tower for one part."""
    features = tower_features(model, part.inputs, model.get_input_embeddings().weight.device)
    assert features.rows.shape[0] == part.tokens, "a tower makes as many features as were counted before"
    return features


def tower_features(model: Any, inputs: Mapping[str, torch.Tensor], device: torch.device) -> Features:
    """Run the tower for inputs of the host."""
    sent = {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}
    output = model.base_model.get_image_features(**sent, return_dict=True)
    return Features(
        _joined(output.pooler_output),
        tuple(_joined(level) for level in getattr(output, "deepstack_features", None) or ()),
    )


def _joined(features: Any) -> torch.Tensor:
    """[tokens, size] of a tensor or of one for each image."""
    rows = features if isinstance(features, torch.Tensor) else torch.cat(tuple(features))
    return rows.reshape(-1, rows.shape[-1])


def place_media(
    text_model: TextModel, tokens: torch.Tensor, plan: StepPlan, source: FeatureSource, staging: Staging
) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """Embeddings of a step with images, and other inputs of the decoder; None for a step without images."""
    rows: list[np.ndarray] = []
    found: list[Features] = []
    first_row = plan.decode_rows
    for chunk in plan.chunks:
        if chunk.sequence.request.media is not None:
            places, features = _of_chunk(chunk, source)
            rows.append(places - chunk.start + first_row)
            found += features
        first_row += chunk.length
    if not found:
        return None, {}
    (where,) = staging.send([np.concatenate(rows)])
    embeddings = text_model.embed(tokens)
    embeddings[where] = torch.cat([features.rows for features in found]).to(embeddings.dtype)
    return embeddings, _deep(found, where, tokens) | _per_layer(text_model.backbone, where, tokens)


def _of_chunk(chunk: Chunk, features: FeatureSource) -> tuple[np.ndarray, list[Features]]:
    """Places in the prompt of the image tokens in a chunk, and their features."""
    media = chunk.sequence.request.media
    first, end = np.searchsorted(media.places, (chunk.start, chunk.start + chunk.length)).tolist()
    found = []
    part_start = 0
    for number, part_end in enumerate(media.ends.tolist()):
        here = slice(max(first, part_start) - part_start, min(end, part_end) - part_start)
        if here.start < here.stop:
            found.append(features.of(chunk.sequence, number, here, last=end >= part_end))
        part_start = part_end
    return media.places[first:end], found


def _deep(found: list[Features], where: torch.Tensor, tokens: torch.Tensor) -> dict[str, Any]:
    """Features for the first layers (Qwen3-VL)."""
    if not found[0].deep:
        return {}
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
