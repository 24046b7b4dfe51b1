"""What vision towers share: a transformer block, its repetition, and the processor's limit on images.

What a processor limits to is read from `preprocessor_config.json` when it is there, else it is the limit the family's
published processor ships with.
"""

from __future__ import annotations

from brim.errors import InvalidConfig
from brim.model.blocks import linear, vector
from brim.model.fields import LARGEST_CONTEXT, ConfigFields
from brim.records.model import MediaLimits, Tensor

COLUMNS = "columns of the tower"
PUBLISHED = "the family's published processor"


def image_limits(
    processor: ConfigFields, *, max_pixels: int = 0, tile_pixels: int = 0, max_tiles: int = 0, source: str = PUBLISHED
) -> MediaLimits:
    """The processor's own limit where it states one, else the family's."""
    size = processor.child("size") if isinstance(processor.raw("size"), dict) else ConfigFields({})
    own_pixels = processor.optional_integer("max_pixels", maximum=LARGEST_CONTEXT) or size.optional_integer(
        "longest_edge", maximum=LARGEST_CONTEXT
    )
    own_tiles = processor.optional_integer(
        "max_dynamic_patch", "max_patches", "max_tiles", "max_image_tiles", "max_crops"
    )
    if max_pixels and own_pixels:
        return MediaLimits("preprocessor_config.json", max_pixels=own_pixels)
    if max_tiles and own_tiles:
        return MediaLimits("preprocessor_config.json", tile_pixels=tile_pixels, max_tiles=own_tiles + 1)
    return MediaLimits(source, max_pixels=max_pixels, tile_pixels=tile_pixels, max_tiles=max_tiles)


def patches(fields: ConfigFields, image: int, patch: int) -> int:
    """How many patches a square image has."""
    if patch > image:
        raise InvalidConfig(fields.where("patch_size"), f"is {patch}, larger than an image of {image} pixels")
    return (image // patch) ** 2


def repeated(tensors: list[Tensor], layers: int, prefix: str) -> list[Tensor]:
    """The tensors of one block, for all blocks of a tower."""
    return [Tensor(f"{prefix}.{t.name}", t.shape, t.units, t.linear, t.count * layers, t.dtype) for t in tensors]


def vit_block(
    hidden: int,
    intermediate: int,
    *,
    qkv_bias: bool = True,
    out_bias: bool = True,
    mlp_bias: bool = True,
    gated: bool = False,
    norm_bias: bool = True,
    norm_count: int = 2,
    attention_width: int = 0,
    kv_width: int = 0,
) -> list[Tensor]:
    """One block of a vision transformer; queries, keys and values are counted as one projection."""
    width = attention_width or hidden
    tensors = linear("attn.qkv", width + 2 * (kv_width or width), hidden, width, qkv_bias)
    tensors += linear("attn.proj", hidden, width, width, out_bias)
    for name in ("mlp.gate_proj", "mlp.up_proj") if gated else ("mlp.fc1",):
        tensors += linear(name, intermediate, hidden, intermediate, mlp_bias)
    tensors += linear("mlp.down_proj", hidden, intermediate, intermediate, mlp_bias)
    return tensors + [t for index in range(norm_count) for t in vector(f"norm{index + 1}", hidden, norm_bias)]
