"""How the vision-language models of each family take images and videos: their processors' output, cut into parts.

A part is the input of one call of the tower. Output that would index outside of a tower's tables is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from brim.engine.media.parts import MediaKind, MediaPart
from brim.engine.media.tensors import host_tensor
from brim.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Family:
    """How the vision-language models of one kind take images."""

    split: Callable[[Mapping[str, Any], Any], tuple[MediaPart, ...]]  # the processor's output, the config
    together: bool = False  # tokens of an image see each other in both directions
    placeholder: str = "image_token"  # the processor's attribute with what a prompt has for an image
    tiled: bool = False  # the parts of a run of image tokens are tiles of one image
    videos: bool = False  # videos too are taken, as frames
    frames_apart: bool = False  # a prompt has text between the frames of a video


def ahead_in_windows_only(config: Any) -> bool:
    """Whether full attention stays causal inside images that sliding attention sees both ways."""
    return getattr(config, "model_type", None) == "gemma4"


def _grids(inputs: Mapping[str, Any], config: Any) -> tuple[MediaPart, ...]:
    """Patches of all images in one row, and a grid for each image (Qwen)."""
    pixels, grids = _patches_in_a_row(inputs, config, MediaKind.IMAGE)
    return _parts_of(pixels, grids, config, MediaKind.IMAGE)


def split_videos(inputs: Mapping[str, Any], config: Any) -> tuple[MediaPart, ...]:
    """A part for each frame of the grid: the towers that take such videos see one at a time, like an image (Qwen)."""
    pixels, grids = _patches_in_a_row(inputs, config, MediaKind.VIDEO)
    frames = torch.cat([torch.tensor([[1, height, width]] * times) for times, height, width in grids.tolist()])
    return _parts_of(pixels, frames, config, MediaKind.VIDEO)


def video_runs(inputs: Mapping[str, Any], config: Any, *, frames_apart: bool) -> list[int]:
    """Tokens of each run of video tokens in a prompt: those of a video, or of a frame with its time before it."""
    merge = config.vision_config.spatial_merge_size**2
    grids = torch.as_tensor(inputs["video_grid_thw"]).tolist()
    if frames_apart:
        return [height * width // merge for times, height, width in grids for _ in range(times)]
    return [times * height * width // merge for times, height, width in grids]


def _patches_in_a_row(inputs: Mapping[str, Any], config: Any, kind: MediaKind) -> tuple[torch.Tensor, torch.Tensor]:
    """(patches of all images or videos, the grid of each)."""
    vision = config.vision_config
    names = ("pixel_values", "image_grid_thw") if kind is MediaKind.IMAGE else ("pixel_values_videos", "video_grid_thw")
    patch = vision.patch_size**2 * vision.temporal_patch_size * vision.in_channels
    pixels = host_tensor(inputs, names[0], (None, patch), kind)
    grids = host_tensor(inputs, names[1], (None, 3), kind, integer=True)
    merge = vision.spatial_merge_size
    if bool((grids < 1).any()) or bool((grids[:, 1:] % merge).any()):
        raise InvalidRequest(f"{kind}: {names[1]} has sides that are not positive multiples of {merge}")
    patches = int(grids.prod(-1).sum())
    if patches != pixels.shape[0]:
        raise InvalidRequest(f"{kind}: {names[0]} has {pixels.shape[0]} patches where {names[1]} says {patches}")
    return pixels, grids


def _parts_of(pixels: torch.Tensor, grids: torch.Tensor, config: Any, kind: MediaKind) -> tuple[MediaPart, ...]:
    merge = config.vision_config.spatial_merge_size**2
    return tuple(
        MediaPart({"pixel_values": some, "image_grid_thw": grids[number : number + 1]}, len(some) // merge, kind)
        for number, some in enumerate(torch.split(pixels, grids.prod(-1).tolist()))
    )


def _squares(inputs: Mapping[str, Any], config: Any) -> tuple[MediaPart, ...]:
    """Images of the one size the tower takes (Gemma 3)."""
    side = config.vision_config.image_size
    pixels = host_tensor(inputs, "pixel_values", (None, config.vision_config.num_channels, side, side), MediaKind.IMAGE)
    return tuple(MediaPart({"pixel_values": one}, config.mm_tokens_per_image) for one in torch.split(pixels, 1))


def _tiles(inputs: Mapping[str, Any], config: Any) -> tuple[MediaPart, ...]:
    """Square tiles, a number of them for an image (InternVL)."""
    vision = config.vision_config
    pixels = host_tensor(inputs, "pixel_values", (None, vision.num_channels, None, None), MediaKind.IMAGE)
    patch = vision.patch_size if isinstance(vision.patch_size, int) else vision.patch_size[0]
    side = pixels.shape[-1]
    tokens_a_side = side / patch * config.downsample_ratio
    if pixels.shape[-2] != side or tokens_a_side != int(tokens_a_side) or tokens_a_side == 0:
        raise InvalidRequest(
            f"images: tiles are {pixels.shape[-2]} by {side} pixels; they must be squares with sides that are "
            f"multiples of {int(patch / config.downsample_ratio)}"
        )
    return tuple(MediaPart({"pixel_values": one}, int(tokens_a_side) ** 2) for one in torch.split(pixels, 1))


def _placed_patches(inputs: Mapping[str, Any], config: Any) -> tuple[MediaPart, ...]:
    """Patches of each image and where in it they are, padded to one length (Gemma 4)."""
    vision = config.vision_config
    pixels = host_tensor(inputs, "pixel_values", (None, None, 3 * vision.patch_size**2), MediaKind.IMAGE)
    places = host_tensor(
        inputs, "image_position_ids", (pixels.shape[0], pixels.shape[1], 2), MediaKind.IMAGE, integer=True
    )
    cell = vision.pooling_kernel_size
    for number, one in enumerate(places):
        _check_patches(one, cell, vision.position_embedding_size, number)
    return tuple(
        MediaPart({"pixel_values": some, "image_position_ids": where}, int((where >= 0).all(-1).sum()) // cell**2)
        for some, where in zip(torch.split(pixels, 1), torch.split(places, 1), strict=True)
    )


def _check_patches(places: torch.Tensor, cell: int, most: int, number: int) -> None:
    """Check for a whole grid of patches: anything else would index outside of the tower's tables, on the device."""
    real = places[(places != -1).all(-1)]
    width, height = (real.max(0).values + 1).tolist() if real.numel() else (0, 0)
    whole = len(set(map(tuple, real.tolist()))) == width * height == real.shape[0] and bool((real >= 0).all())
    if not whole or not real.numel() or width % cell or height % cell or max(width, height) > most:
        raise InvalidRequest(
            f"images: image_position_ids of image {number} do not form a grid with sides that are multiples of {cell}"
        )
    if places.shape[0] % cell**2:
        raise InvalidRequest(f"images: {places.shape[0]} patches for image {number} are not a multiple of {cell**2}")


def family_of(config: Any) -> Family | None:
    match getattr(config, "model_type", None):
        case "qwen2_vl" | "qwen2_5_vl":
            return Family(_grids, videos=True)
        case "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe":
            return Family(_grids, videos=True, frames_apart=True)
        case "qwen2_5_omni_thinker" | "qwen3_omni_moe_thinker":
            return Family(_grids)
        case "internvl":
            return Family(_tiles, tiled=True)
        case "gemma3":
            return Family(_squares, together=True, placeholder="boi_token")
        case "gemma4":
            both_ways = config.get_text_config().use_bidirectional_attention == "vision"
            return Family(_placed_patches, together=both_ways)
    return None


def feature_levels(config: Any) -> int:
    """Rows of features for a token of an image: its own, and those that go to the decoder's first layers."""
    return 1 + len(getattr(getattr(config, "vision_config", None), "deepstack_visual_indexes", None) or ())
