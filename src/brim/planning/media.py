"""The worst media input a prompt may bring, in encoder positions.

In: a tower, and what the user allows (pixels per image, images per prompt, seconds of audio). Out: positions the
encoder runs over at once, and a description. Media become tokens of the prompt, so the context bounds them too.
"""

from __future__ import annotations

from brim.records.model import MediaType, TowerSpec
from brim.units import ceil_div


def worst_positions(
    tower: TowerSpec,
    *,
    image_pixels: int | None,
    images_per_prompt: int | None,
    audio_seconds: int | None,
    max_len: int,
) -> tuple[int, str]:
    """(positions, explanation) of the largest input of a prompt."""
    if tower.media is MediaType.AUDIO:
        seconds = min(audio_seconds or tower.limits.max_seconds, tower.limits.max_seconds)
        source = (
            "--audio-seconds" if audio_seconds and audio_seconds < tower.limits.max_seconds else tower.limits.source
        )
        return seconds * tower.frames_per_second, f"{seconds} s of audio ({source})"
    images = 1 if images_per_prompt is None else images_per_prompt
    each, words = _one_image(tower, image_pixels)
    positions = images * each
    bound = max_len * tower.merge
    if positions > bound:
        return bound, f"media of {max_len} tokens, the whole context"
    return positions, words if images == 1 else f"{images} × {words}"


def _one_image(tower: TowerSpec, asked_pixels: int | None) -> tuple[int, str]:
    limits = tower.limits
    if limits.max_tiles:
        tiles, source = limits.max_tiles, limits.source
        if asked_pixels is not None:
            thumbnail = 1 if limits.max_tiles > 1 else 0
            wanted = ceil_div(asked_pixels, limits.tile_pixels) + thumbnail
            tiles, source = min(tiles, wanted), "--image-pixels"
        return tiles * (limits.tile_pixels // tower.pixels_per_patch + 1), f"an image of {tiles} tiles ({source})"
    pixels = limits.max_pixels if asked_pixels is None else min(asked_pixels, limits.max_pixels)
    source = "--image-pixels" if asked_pixels is not None and asked_pixels < limits.max_pixels else limits.source
    return ceil_div(pixels, tower.pixels_per_patch), f"an image of {pixels / 1e6:.1f} megapixels ({source})"
