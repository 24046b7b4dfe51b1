"""Where M-RoPE sees the tokens of a prompt with media, as the model's own class counts (`get_rope_index`)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from brim.engine.media.audio.families import AudioFamily
from brim.engine.media.parts import Kind, MediaPart
from brim.errors import InvalidRequest, first_line

if TYPE_CHECKING:
    import numpy as np

_TYPES = {Kind.IMAGE: 1, Kind.VIDEO: 2, Kind.AUDIO: 3}  # `mm_token_type_ids` of transformers; text is 0


def mrope_positions(
    base: Any,
    tokens: Sequence[int],
    parts: Mapping[Kind, tuple[MediaPart, ...]],
    places: Mapping[Kind, np.ndarray],
    audio: AudioFamily | None,
) -> tuple[np.ndarray, int]:
    """([3, prompt] positions, what is added to the place of a token behind the prompt)."""
    ids = torch.tensor([tokens])
    kinds = torch.zeros_like(ids, dtype=torch.int)
    for kind, some in places.items():
        kinds[0, torch.from_numpy(some)] = _TYPES[kind]
    known: dict[str, Any] = {"mm_token_type_ids": kinds}
    if Kind.IMAGE in parts:
        known["image_grid_thw"] = torch.cat([part.inputs["image_grid_thw"] for part in parts[Kind.IMAGE]])
    if Kind.AUDIO in parts:
        assert audio is not None
        known["audio_seqlens"] = torch.tensor([audio.frames(part) for part in parts[Kind.AUDIO]])
    asked = inspect.signature(base.get_rope_index).parameters
    try:
        positions, shift = base.get_rope_index(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **{name: value for name, value in known.items() if name in asked},
        )
        found = positions[:, 0].long().numpy()
    except (RuntimeError, IndexError, ValueError, TypeError) as error:  # tokens around media that the class counts on
        raise InvalidRequest(
            f"{next(iter(parts))}: the model's class cannot tell their positions ({first_line(error)}); write the "
            "tokens around them as its processor does"
        ) from error
    if found.shape != (3, len(tokens)) or bool((found < 0).any()):
        raise InvalidRequest(f"{next(iter(parts))}: write the tokens around them as the model's processor does")
    return found, int(shift.item())
