"""A tower by itself: media in, features out, and the worst batches that it may be given.

In: a model of towers (`weights.parts`) and the limits of media. Out: a row of features for each token, the levels that
go to the decoder's first layers beside each other in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import torch

from brim.engine.encoders.batches import elements, joined
from brim.engine.encoders.records import MOST_PARTS
from brim.engine.media.families import family_of
from brim.engine.media.limits import ImageLimits, worst_part
from brim.engine.media.parts import MediaPart
from brim.engine.media.towers import tower_features

_LONGEST_SIDE = 200  # times the other: what processors of images allow


@dataclass(frozen=True, slots=True, eq=False)
class Tower:
    """Runs batches on a device."""

    model: Any
    device: torch.device

    @torch.inference_mode()
    def rows(self, parts: Sequence[Mapping[str, torch.Tensor]]) -> tuple[torch.Tensor, int]:
        """(features of these parts in order, a row for each token; the levels in a row), in one call of the tower."""
        features = tower_features(self.model, joined(parts), self.device)
        return torch.cat([features.rows, *features.deep], dim=1), 1 + len(features.deep)


def largest_part(config: Any, limits: ImageLimits, max_length: int, max_batch_tokens: int) -> MediaPart | None:
    """The largest image that a request may have, as the engine counts."""
    family = family_of(config)
    most_tokens = max_length - 1
    if family is not None and family.together:
        most_tokens = min(most_tokens, max_batch_tokens)
    return worst_part(config, limits, most_tokens)


def worst_batches(config: Any, limits: ImageLimits, largest: MediaPart, batch: int) -> list[list[MediaPart]]:
    """As many of the largest image as a batch has; strips of as many patches; and the most tiny images."""
    found = [[largest] * batch]
    strip = _strip(config, largest)
    if strip is not None:
        found.append([strip] * batch)
    tiny = worst_part(config, limits, 1)
    if tiny is not None:
        found.append([tiny] * min(MOST_PARTS, batch * elements(largest.inputs) // elements(tiny.inputs)))
    return found


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
