"""Checks of images against their prompt and the limits of the engine: refused with the numbers, or accepted."""

from __future__ import annotations

import numpy as np

from brim.engine.media.features import ImagePart
from brim.engine.media.limits import ImageLimits
from brim.errors import InvalidRequest


def check_counts(
    parts: tuple[ImagePart, ...], places: np.ndarray, runs: list[tuple[int, int]], *, by_run: bool
) -> None:
    """As many image tokens as the tower will make, and with M-RoPE a run of them for each image."""
    tokens = sum(part.tokens for part in parts)
    if places.size != tokens:
        raise InvalidRequest(f"images: they take {tokens} image tokens where the prompt has {places.size}")
    if by_run and [end - start for start, end in runs] != [part.tokens for part in parts]:
        raise InvalidRequest(
            f"images: the prompt has image tokens in runs of {_few([end - start for start, end in runs])} where the "
            f"images take {_few([part.tokens for part in parts])}; keep a text token between images"
        )


def check_sizes(parts: tuple[ImagePart, ...], runs: list[tuple[int, int]] | None, limits: ImageLimits) -> None:
    """No call of the tower larger than the one the fit validated, and no image larger than the user allows."""
    for number, part in enumerate(parts):
        patches = limits.patches(part)
        if patches > limits.call_patches:
            raise InvalidRequest(
                f"images: image {number} is {patches} patches of {limits.pixels_per_patch} pixels after processing, "
                f"more than the {limits.call_patches} of {limits.source}; send a smaller one"
            )
    if limits.max_pixels is None:
        return
    sizes = [limits.pixels(part) for part in parts]
    for number, pixels in enumerate(sizes if runs is None else _by_run(sizes, parts, runs)):
        if pixels > limits.max_pixels:
            raise InvalidRequest(
                f"images: image {number} has {pixels} pixels after processing ({pixels // limits.pixels_per_patch} "
                f"patches of {limits.pixels_per_patch}), more than max_image_pixels {limits.max_pixels}; "
                "send a smaller one, or raise the limit"
            )


def _by_run(sizes: list[int], parts: tuple[ImagePart, ...], runs: list[tuple[int, int]]) -> list[int]:
    """What the parts that begin in each run of image tokens have together."""
    ends = np.cumsum([end - start for start, end in runs])
    starts = np.cumsum([0, *(part.tokens for part in parts[:-1])])
    sums = [0] * len(runs)
    for run, size in zip(np.searchsorted(ends, starts, side="right").tolist(), sizes, strict=True):
        sums[run] += size
    return sums


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
