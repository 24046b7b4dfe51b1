"""A multimodal projector (mmproj) as a tower: its dimensions from the header, its tensors from the table.

In: the header of the projector's file. Out: `TowerSpec`s, one for images and one for audio where it has both. The
largest image is llama.cpp's own limit, not that of the model's processor: images that may have any size are cut to so
many tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.errors import InvalidConfig
from brim.model.fields import ConfigFields
from brim.model.gguf.header import GgufHeader, GgufTensor
from brim.records.model import Dtype, MediaLimits, MediaType, Tensor, TowerSpec

ARCHITECTURE = "clip"
_AUDIO = ("a.", "mm.a.")
_ANY_SIZE_TOKENS: Mapping[str, int] = {  # the most tokens of an image, for projectors that take any size
    "gemma4v": 280,
    "kimik25": 4096,
    "kimivl": 1024,
    "lfm2": 256,
    "pixtral": 1024,
    **dict.fromkeys(("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "glm4v"), 4096),
}
_MERGES: Mapping[str, int] = {  # patches that become a token, along an edge, where the header does not say
    **dict.fromkeys(("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "glm4v"), 2),
    "gemma3": 4,
    "gemma4v": 3,
}
_AUDIO_SECONDS, _AUDIO_FRAMES = 30, 50  # a window of Whisper's encoder, which most audio encoders are


def towers_of(header: GgufHeader) -> tuple[TowerSpec, ...]:
    """The encoders in a projector's file."""
    found = []
    for media, key in ((MediaType.IMAGE, "vision"), (MediaType.AUDIO, "audio")):
        if header.metadata.get(f"clip.has_{key}_encoder") is True:
            tensors = [one for one in header.tensors if one.name.startswith(_AUDIO) is (media is MediaType.AUDIO)]
            found.append(_tower(header, media, key, tensors))
    if not found:
        raise InvalidConfig(
            f"{header.file}: clip.has_vision_encoder", "and clip.has_audio_encoder are missing or false"
        )
    return tuple(found)


def _tower(header: GgufHeader, media: MediaType, key: str, tensors: list[GgufTensor]) -> TowerSpec:
    fields = ConfigFields(_below(header, f"clip.{key}."), f"{header.file}: clip.{key}")
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    kind = str(header.metadata.get(f"clip.{key}.projector_type") or header.metadata.get("clip.projector_type") or "")
    patch = fields.integer("patch_size", default=1)
    merge = fields.integer("spatial_merge_size", "projector.scale_factor", default=_MERGES.get(kind, 1)) ** 2
    return TowerSpec(
        media=media,
        hidden=hidden,
        intermediate=fields.integer("feed_forward_length"),
        layers=fields.layer_count("block_count"),
        heads=heads,
        tensors=tuple(_tensor(one) for one in tensors),
        limits=_limits(fields, media, kind, patch * patch * merge),
        pixels_per_patch=patch * patch if media is MediaType.IMAGE else 0,
        merge=merge,
        frames_per_second=_AUDIO_FRAMES if media is MediaType.AUDIO else 0,
        output=fields.integer("projection_dim", default=hidden),
        gated=any("ffn_gate" in one.name for one in tensors),
        head_dim=hidden // heads,
    )


def _below(header: GgufHeader, prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}


def _tensor(stored: GgufTensor) -> Tensor:
    wide = {"f32": Dtype.FP32, "bf16": Dtype.BF16, "f16": Dtype.FP16}
    return Tensor(stored.name, stored.shape, linear=len(stored.shape) == 2, dtype=wide.get(stored.type.name))


def _limits(fields: ConfigFields, media: MediaType, kind: str, token_pixels: int) -> MediaLimits:
    if media is MediaType.AUDIO:
        return MediaLimits("a window of the encoder", max_seconds=_AUDIO_SECONDS)
    if "image_max_pixels" in fields:
        return MediaLimits("the projector's header", max_pixels=fields.integer("image_max_pixels", maximum=1 << 40))
    if kind in _ANY_SIZE_TOKENS:
        most = _ANY_SIZE_TOKENS[kind]
        return MediaLimits(f"llama.cpp's limit of {most} tokens", max_pixels=most * token_pixels)
    pixels = fields.integer("image_size") ** 2
    if "preproc_max_tiles" in fields:
        tiles = fields.integer("preproc_max_tiles", maximum=1 << 16)
        return MediaLimits("the projector's header", tile_pixels=pixels, max_tiles=tiles)
    return MediaLimits("the projector's header", max_pixels=pixels)
