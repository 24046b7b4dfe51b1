"""Towers by themselves: media in, features out, and the worst batches that they may be given.

In: a model of towers (`weights.parts`) and the limits of media. Out: a row of features for each token, the levels that
go to the decoder's first layers beside each other in it. Audios are encoded one by one: no two are equally long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import torch

from brim.engine.encoders.batches import elements, joined
from brim.engine.encoders.records import MOST_PARTS, EncoderSource
from brim.engine.media.allowed import AllowedMedia
from brim.engine.media.audio.families import audio_family_of
from brim.engine.media.audio.limits import audio_limits_of, longest_part
from brim.engine.media.families import family_of
from brim.engine.media.limits import limits_of, worst_part
from brim.engine.media.parts import MediaKind, MediaPart
from brim.engine.media.towers import tower_features
from brim.engine.weights.load import max_positions

_LONGEST_SIDE = 200  # times the other: what processors of images allow


@dataclass(frozen=True, slots=True, eq=False)
class Tower:
    """Runs batches on a device."""

    model: Any
    device: torch.device

    @torch.inference_mode()
    def rows(self, parts: Sequence[Mapping[str, torch.Tensor]], tokens: int) -> tuple[torch.Tensor, int]:
        """(features of these parts in order, a row for each token; the levels in a row), in one call of a tower."""
        features = tower_features(self.model, joined(parts), tokens, self.device)
        return torch.cat([features.rows, *features.deep], dim=1), 1 + len(features.deep)


def towers_of(config: Any) -> tuple[MediaKind, ...]:
    """The kinds of media that a model has towers for."""
    sees = family_of(config) is not None and getattr(config, "vision_config", None) is not None
    hears = audio_family_of(config) is not None
    return tuple(kind for kind, has in ((MediaKind.IMAGE, sees), (MediaKind.AUDIO, hears)) if has)


def allowed_media(source: EncoderSource, config: Any, folder: Path | None) -> AllowedMedia:
    """The limits of each kind, as the engine finds them."""
    kinds, length, family = towers_of(config), _max_length(source, config), audio_family_of(config)
    images = limits_of(config, folder, source.max_image_pixels, length) if MediaKind.IMAGE in kinds else None
    audios = None if family is None else audio_limits_of(config, folder, family, source.max_audio_seconds, length)
    return AllowedMedia(images, audios)


def largest_part(kind: MediaKind, source: EncoderSource, config: Any, allowed: AllowedMedia) -> MediaPart | None:
    """The largest image or the longest audio that a request may have, as the engine counts."""
    most_tokens = _max_length(source, config) - 1
    family, audio_family = family_of(config), audio_family_of(config)
    if kind is MediaKind.IMAGE and family is not None and allowed.images is not None:
        together = min(most_tokens, source.max_batch_tokens) if family.together else most_tokens
        return worst_part(config, allowed.images, together)
    if kind is MediaKind.AUDIO and audio_family is not None and allowed.audios is not None:
        return longest_part(audio_family, allowed.audios, most_tokens)
    return None


def made_smaller(config: Any, allowed: AllowedMedia, largest: MediaPart, share: float) -> tuple[AllowedMedia, str]:
    """Limits that allow so much of what the largest part has, and what they then are in words."""
    audio_family = audio_family_of(config)
    if largest.kind is MediaKind.AUDIO:
        assert audio_family is not None, "an audio part has a family"
        assert allowed.audios is not None
        frames = int(audio_family.frames(largest) * share)
        seconds = frames / allowed.audios.frames_per_second
        return allowed.lowered(audio_frames=frames), f"audio of at most {seconds:.2f} seconds"
    assert allowed.images is not None
    patches = int(allowed.images.patches(largest) * share)
    pixels = patches * allowed.images.pixels_per_patch
    return allowed.lowered(call_patches=patches), f"images of at most {pixels:,} pixels"


def worst_batches(config: Any, allowed: AllowedMedia, largest: MediaPart, batch: int) -> list[list[MediaPart]]:
    """As many of the largest image as a batch has; strips of as many patches; and the most tiny images.

    Of audio, the longest one.
    """
    if largest.kind is MediaKind.AUDIO:
        return [[largest]]
    found = [[largest] * batch]
    strip = _strip(config, largest)
    if strip is not None:
        found.append([strip] * batch)
    tiny = None if allowed.images is None else worst_part(config, allowed.images, 1)
    if tiny is not None:
        found.append([tiny] * min(MOST_PARTS, batch * elements(largest.inputs) // elements(tiny.inputs)))
    return found


def _max_length(source: EncoderSource, config: Any) -> int:
    return source.max_length or max_positions(config.get_text_config(decoder=True))


def _strip(config: Any, part: MediaPart) -> MediaPart | None:
    """An image as long as it may be, where towers take images of any shape (grids of patches)."""
    if "image_grid_thw" not in part.inputs:
        return None
    merge = config.vision_config.spatial_merge_size
    short = ceil(sqrt(part.tokens / _LONGEST_SIDE))
    long = part.tokens // short
    grid = torch.tensor([[1, short * merge, long * merge]])
    pixels = part.inputs["pixel_values"][: short * long * merge**2]
    return MediaPart({"pixel_values": pixels, "image_grid_thw": grid}, short * long)
