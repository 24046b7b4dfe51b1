"""Images beyond the limits made smaller, in the way in which processors of grids of patches do it: the shape stays."""

from __future__ import annotations

from math import floor, isqrt, sqrt
from typing import Any

from brim.engine.media.limits import ImageLimits


def resized(image: Any, limits: ImageLimits) -> Any:
    """A PIL image, smaller where it would take more tokens than the limits allow. Sides become whole tokens."""
    width, height = smaller_size(image.width, image.height, limits)
    if (width, height) == (image.width, image.height):
        return image
    return image.resize((width, height), resample=_BICUBIC)


_BICUBIC = 3  # as PIL numbers it


def smaller_size(width: int, height: int, limits: ImageLimits) -> tuple[int, int]:
    """The sides of the largest image of about the same shape within the limits; the same sides where they are."""
    edge, most = isqrt(limits.pixels_per_patch * limits.merge), limits.most_tokens
    if _tokens(width, edge) * _tokens(height, edge) <= most:
        return width, height
    scale = sqrt(width * height / (most * edge**2))
    across, down = (max(1, floor(side / scale / edge)) for side in (width, height))
    across, down = min(across, most), min(down, most)  # a strip: the other side is one token
    return across * edge, down * edge


def _tokens(side: int, edge: int) -> int:
    """Tokens of a side, as processors round it."""
    return max(1, round(side / edge))
