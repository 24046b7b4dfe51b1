"""The largest image that a request may have: the limit for requests, and the image that the fit's worst step encodes.

In: a model's config, its processor's file if the folder has one, what the user allows, and the context. Out:
`ImageLimits`, and the largest `MediaPart` for a call of the tower. Its pixels are zeros: a blank image takes as much
memory as any other, and its equal tokens go to the same experts of a mixture.

Does not group tiles of one image: each is a call of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path
from typing import Any

import torch

from brim.engine.media.parts import MediaPart
from brim.engine.weights.load import LoadedModel
from brim.errors import InputError
from brim.model.config import read_config
from brim.model.jsonfile import read_object
from brim.records.model import MediaLimits, MediaType


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What an image may be, counted in patches of the tower after processing."""

    call_patches: int  # in one call of the tower, padding included
    source: str  # where the limit comes from
    pixels_per_patch: int
    merge: int  # patches that become one token
    max_pixels: int | None = None  # of a whole image, set by the user
    resizes: bool = False  # larger images are made smaller; False: they are refused

    def patches(self, part: MediaPart) -> int:
        """Patches in the tower's call for this part, padding included."""
        pixels = part.inputs["pixel_values"]
        if pixels.dim() == 4:  # an image as it is
            return pixels.shape[-2] * pixels.shape[-1] // self.pixels_per_patch
        return pixels.shape[-2]  # patches in a row

    def pixels(self, part: MediaPart) -> int:
        """Pixels of the image itself, after processing."""
        return (
            part.tokens
            * self.merge  # patches of a token
            * self.pixels_per_patch
        )

    def lowered(self, call_patches: int) -> ImageLimits:
        """The same, with a smaller limit of a call where an encoder has found one."""
        if call_patches >= self.call_patches:
            return self
        return replace(self, call_patches=call_patches, source="the encoder's reserve")

    @property
    def most_tokens(self) -> int:
        """Language tokens that one call makes at most."""
        whole = self.call_patches // self.merge
        if self.max_pixels is None:
            return whole
        return min(whole, self.max_pixels // (self.merge * self.pixels_per_patch))


def find_limits(loaded: LoadedModel, max_pixels: int | None, max_length: int) -> ImageLimits:
    """Those of a loaded model."""
    return limits_of(loaded.full_config, loaded.folder, max_pixels, max_length)


def limits_of(config: Any, folder: Path | None, max_pixels: int | None, max_length: int) -> ImageLimits:
    """The processor's own limit, else the planner's limit for the family, else what fits the context."""
    patch, merge = _patch_edge(config.vision_config), _merge(config)
    pixels, source = _call_pixels(config, _processor_file(folder))
    if not pixels:
        pixels, source = max_length * merge * patch**2, "the context"
    return ImageLimits(pixels // patch**2, source, patch**2, merge, max_pixels)


def takes_any_shape(config: Any) -> bool:
    """Whether an image is a grid of as many patches as it has (Qwen), and not resized to one of a few shapes."""
    return hasattr(config.vision_config, "spatial_merge_size")


def worst_part(config: Any, limits: ImageLimits, most_tokens: int) -> MediaPart | None:
    """The largest part that makes at most so many tokens; None where every image is refused."""
    tokens = min(limits.most_tokens, most_tokens)
    if tokens < 1:
        return None
    match config.model_type:
        case "internvl":
            return _tile(config, tokens)
        case "gemma3":
            return _square(config) if config.mm_tokens_per_image <= tokens else None
        case "gemma4":
            return _padded_patches(config, tokens, limits)
    return _grid(config, tokens)


def largest_grid(cells: int, longest: int) -> tuple[int, int]:
    """The two sides of the largest grid of at most so many cells; the squarest of those."""
    best = (0, 0)
    for short in range(min(isqrt(cells), longest), 0, -1):
        long = min(cells // short, longest)
        if short * long > best[0] * best[1]:
            best = (short, long)
    return best


def near_square(cells: int) -> tuple[int, int]:
    """The two sides of the smallest grid of at least so many cells that is no strip; the squarest of those."""
    root = isqrt(cells)
    grids = [(short, -(-cells // short)) for short in range(root, root // 2, -1)]
    return min(grids, key=lambda sides: sides[0] * sides[1])


# -- limits --------------------------------------------------------------------------------------------------------


def _processor_file(folder: Path | None) -> Mapping[str, Any]:
    """The image processor's settings, from where `transformers` reads them; empty where there are none."""
    if folder is None:
        return {}
    nested, own = folder / "processor_config.json", folder / "preprocessor_config.json"
    if nested.is_file() and isinstance(found := read_object(nested).get("image_processor"), dict):
        return found
    return read_object(own) if own.is_file() else {}


def _call_pixels(config: Any, processor: Mapping[str, Any]) -> tuple[int, str]:
    """(pixels of the largest call, source of the limit); 0 if unknown."""
    own = _own_pixels(config, processor)
    if own:
        return own, "the model's processor"
    with suppress(InputError):  # a config the planner does not read
        spec = read_config(config.to_dict(), name="engine", processor=processor)
        limits = next((tower.limits for tower in spec.towers if tower.media is MediaType.IMAGE), MediaLimits("unknown"))
        return limits.tile_pixels or limits.max_pixels, limits.source
    return 0, ""


def _own_pixels(config: Any, processor: Mapping[str, Any]) -> int:
    """Limits of processors that the planner does not read."""
    match config.model_type:
        case "internvl" if isinstance(size := processor.get("size"), dict):
            height, width = size.get("height"), size.get("width")
            return height * width if isinstance(height, int) and isinstance(width, int) else 0
        case "gemma4" if isinstance(tokens := processor.get("max_soft_tokens"), int):
            return tokens * _merge(config) * _patch_edge(config.vision_config) ** 2
    return 0


def _patch_edge(vision: Any) -> int:
    return int(vision.patch_size if isinstance(vision.patch_size, int) else vision.patch_size[0])


def _merge(config: Any) -> int:
    """Patches that become one token."""
    vision = config.vision_config
    match config.model_type:
        case "internvl":
            return round(1 / float(config.downsample_ratio) ** 2)
        case "gemma3":
            return max(1, int((vision.image_size // vision.patch_size) ** 2 // config.mm_tokens_per_image))
        case "gemma4":
            return int(vision.pooling_kernel_size**2)
    return int(vision.spatial_merge_size**2)


# -- parts ---------------------------------------------------------------------------------------------------------


def _grid(config: Any, tokens: int) -> MediaPart:
    """Patches in a row and their grid (Qwen)."""
    vision = config.vision_config
    height, width = (side * vision.spatial_merge_size for side in largest_grid(tokens, tokens))
    pixels = torch.zeros(height * width, vision.patch_size**2 * vision.temporal_patch_size * vision.in_channels)
    return MediaPart({"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, height, width]])}, tokens)


def _tile(config: Any, tokens: int) -> MediaPart:
    """One tile (InternVL), as many of them as an image may have."""
    vision = config.vision_config
    side = isqrt(tokens)
    edge = round(side * _patch_edge(vision) / config.downsample_ratio)
    return MediaPart({"pixel_values": torch.zeros(1, vision.num_channels, edge, edge)}, side**2)


def _square(config: Any) -> MediaPart:
    """The only size there is (Gemma 3)."""
    vision = config.vision_config
    pixels = torch.zeros(1, vision.num_channels, vision.image_size, vision.image_size)
    return MediaPart({"pixel_values": pixels}, config.mm_tokens_per_image)


def _padded_patches(config: Any, tokens: int, limits: ImageLimits) -> MediaPart:
    """Patches and their places, padded to the processor's length (Gemma 4).

    Where there is room, a token's patches less than could be: with padding, attention needs a mask too.
    """
    vision = config.vision_config
    kernel = vision.pooling_kernel_size
    rows = limits.call_patches // limits.merge * limits.merge
    cells = max(1, min(tokens, rows // limits.merge - 1))
    across, down = largest_grid(cells, vision.position_embedding_size // kernel)
    places = torch.full((1, rows, 2), -1)
    grid = torch.cartesian_prod(torch.arange(across * kernel), torch.arange(down * kernel))
    places[0, : grid.shape[0]] = grid
    pixels = torch.zeros(1, rows, 3 * vision.patch_size**2)
    return MediaPart({"pixel_values": pixels, "image_position_ids": places}, across * down)
