"""Where M-RoPE sees the tokens of a prompt with media, as the model's own class counts (`get_rope_index`)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from brim.engine.media.parts import MediaKind
from brim.errors import InvalidRequest, first_line

if TYPE_CHECKING:
    import numpy as np

_TYPES = {MediaKind.IMAGE: 1, MediaKind.VIDEO: 2, MediaKind.AUDIO: 3}  # `mm_token_type_ids` of transformers; text is 0
_SAID = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts")  # what the processor's output says of positions


def mrope_positions(
    base: Any,
    tokens: Sequence[int],
    inputs: Mapping[str, Any],
    places: Mapping[MediaKind, np.ndarray],
    audio_frames: Sequence[int],
) -> tuple[np.ndarray, int]:
    """([3, prompt] positions, what is added to the place of a token behind the prompt)."""
    ids = torch.tensor([tokens])
    kinds = torch.zeros_like(ids, dtype=torch.int)
    for kind, some in places.items():
        kinds[0, torch.from_numpy(some)] = _TYPES[kind]
    known = {name: torch.as_tensor(inputs[name]).cpu() for name in _SAID if inputs.get(name) is not None}
    known["mm_token_type_ids"] = kinds
    if audio_frames:
        known["audio_seqlens"] = torch.tensor(audio_frames)
    asked = inspect.signature(base.get_rope_index).parameters
    named = next(iter(places))
    try:
        positions, shift = base.get_rope_index(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **{name: value for name, value in known.items() if name in asked},
        )
        found = positions[:, 0].long().numpy()
    except (RuntimeError, IndexError, ValueError, TypeError, StopIteration) as error:  # of tokens around media
        raise InvalidRequest(
            f"{named}: the model's class cannot tell their positions ({first_line(error)}); write the tokens around "
            "them as its processor does"
        ) from error
    if found.shape != (3, len(tokens)) or bool((found < 0).any()):
        raise InvalidRequest(f"{named}: write the tokens around them as the model's processor does")
    return found, _shift_behind(found, int(shift.item()))


def _shift_behind(positions: np.ndarray, said: int) -> int:
    """As `generate` goes on: from the last position, where the class may say to go on from the largest."""
    last = positions[:, -1].tolist()
    return last[0] + 1 - positions.shape[1] if len(set(last)) == 1 else said
