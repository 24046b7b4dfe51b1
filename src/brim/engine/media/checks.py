"""Checks of media against their prompt and the limits of the engine: refused with the numbers, or accepted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from brim.engine.media.limits import ImageLimits
from brim.engine.media.parts import MediaKind, MediaPart
from brim.errors import InvalidRequest

_WHAT = {MediaKind.IMAGE: "image", MediaKind.VIDEO: "frame"}
TENSORS = {MediaKind.IMAGE: "pixel_values", MediaKind.AUDIO: "input_features", MediaKind.VIDEO: "pixel_values_videos"}


def check_given(inputs: Mapping[str, Any], kinds: Collection[MediaKind]) -> None:
    """No media in a processor's output that were not asked for by name: their tokens would be taken for text."""
    for kind, name in TENSORS.items():
        if kind not in kinds and inputs.get(name) is not None:
            raise InvalidRequest(
                f"{next(iter(kinds))}: the processor's output has {name} too; give it as {kind} as well"
            )


def check_counts(kind: MediaKind, parts: tuple[MediaPart, ...], places: np.ndarray, wanted: list[int] | None) -> None:
    """As many tokens as the tower will make, in runs of these lengths where positions depend on it."""
    what = kind.removesuffix("s")
    tokens = sum(part.tokens for part in parts)
    if places.size != tokens:
        raise InvalidRequest(f"{kind}: they take {tokens} {what} tokens where the prompt has {places.size}")
    runs = [end - start for start, end in runs_of(places)]
    if wanted is not None and runs != wanted:
        raise InvalidRequest(
            f"{kind}: the prompt has {what} tokens in runs of {_few(runs)} where the {kind} take "
            f"{_few(wanted)}; keep a text token between {kind}"
        )


def check_sizes(
    kind: MediaKind, parts: tuple[MediaPart, ...], runs: list[tuple[int, int]] | None, limits: ImageLimits
) -> None:
    """No call of the tower larger than the one the fit validated, and no image larger than the user allows."""
    for number, part in enumerate(parts):
        patches = limits.patches(part)
        if patches > limits.call_patches:
            raise InvalidRequest(
                f"{kind}: {_WHAT[kind]} {number} is {patches} patches of {limits.pixels_per_patch} pixels after "
                f"processing, more than the {limits.call_patches} of {limits.source}; send a smaller one"
            )
    if limits.max_pixels is None:
        return
    sizes = [limits.pixels(part) for part in parts]
    for number, pixels in enumerate(sizes if runs is None else _by_run(sizes, parts, runs)):
        if pixels > limits.max_pixels:
            raise InvalidRequest(
                f"{kind}: {_WHAT[kind]} {number} has {pixels} pixels after processing "
                f"({pixels // limits.pixels_per_patch} patches of {limits.pixels_per_patch}), more than "
                f"max_image_pixels {limits.max_pixels}; send a smaller one, or raise the limit"
            )


def _by_run(sizes: list[int], parts: tuple[MediaPart, ...], runs: list[tuple[int, int]]) -> list[int]:
    """What the parts that begin in each run of image tokens have together."""
    ends = np.cumsum([end - start for start, end in runs])
    starts = np.cumsum([0, *(part.tokens for part in parts[:-1])])
    sums = [0] * len(runs)
    for run, size in zip(np.searchsorted(ends, starts, side="right").tolist(), sizes, strict=True):
        sums[run] += size
    return sums


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def runs_of(places: np.ndarray) -> list[tuple[int, int]]:
    """[start, end) of neighbouring places."""
    if not places.size:
        return []
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(places, breaks)]
