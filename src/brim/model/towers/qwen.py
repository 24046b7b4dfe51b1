"""The vision towers of Qwen-VL, and of GLM-4V, which follows them: patches of any number, merged two by two."""

from __future__ import annotations

from brim.model.blocks import linear, norms, vector
from brim.model.fields import ConfigFields
from brim.model.towers.vit import COLUMNS, image_limits, patches, repeated, vit_block
from brim.records.model import MediaType, Tensor, TowerSpec


def qwen2_vl(fields: ConfigFields, processor: ConfigFields) -> TowerSpec:
    """Qwen2-VL: `embed_dim` is the tower's width, `hidden_size` what it hands over."""
    hidden = fields.integer("embed_dim", default=1280)
    depth = fields.layer_count("depth", default=32)
    intermediate = max(1, int(hidden * fields.ratio("mlp_ratio", default=4)))
    output = fields.integer("hidden_size", default=3584)
    tensors = repeated(vit_block(hidden, intermediate), depth, "visual.blocks")
    return _qwen_tower(fields, hidden, intermediate, depth, output, tensors, processor, norm_bias=True)


def qwen2_5_vl(fields: ConfigFields, processor: ConfigFields) -> TowerSpec:
    hidden = fields.integer("hidden_size", default=3584)
    depth = fields.layer_count("depth", default=32)
    intermediate = fields.integer("intermediate_size", default=3420)
    output = fields.integer("out_hidden_size", default=3584)
    block = vit_block(hidden, intermediate, gated=True, norm_bias=False)
    tensors = repeated(block, depth, "visual.blocks")
    return _qwen_tower(fields, hidden, intermediate, depth, output, tensors, processor, norm_bias=False, gated=True)


def _qwen_tower(
    fields: ConfigFields,
    hidden: int,
    intermediate: int,
    depth: int,
    output: int,
    tensors: list[Tensor],
    processor: ConfigFields,
    *,
    norm_bias: bool,
    gated: bool = False,
) -> TowerSpec:
    patch, frames = fields.integer("patch_size", default=14), fields.integer("temporal_patch_size", default=2)
    channels = fields.integer("in_channels", "in_chans", default=3)
    merge = fields.integer("spatial_merge_size", default=2) ** 2
    tensors = [
        Tensor("visual.patch_embed.proj", (hidden, channels, frames, patch, patch)),
        *tensors,
        *vector("visual.merger.ln_q", hidden, norm_bias),
        *linear("visual.merger.mlp.0", merge * hidden, merge * hidden, bias=True),
        *linear("visual.merger.mlp.2", output, merge * hidden, bias=True),
    ]
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor("num_heads", of=hidden, what=COLUMNS, default=16),
        tensors=tuple(tensors),
        limits=image_limits(processor, max_pixels=16384 * 28 * 28),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=output,
        gated=gated,
        fp32_rope=True,
    )


def qwen3_vl(fields: ConfigFields, processor: ConfigFields, *, deepstack: int) -> TowerSpec:
    """Qwen3-VL and the Qwen3.5 line: learned positions, and features of some layers handed over beside the last.

    `deepstack` is how many such layers the class has where the config does not list them."""
    hidden = fields.integer("hidden_size", default=1152)
    depth = fields.layer_count("depth", default=27)
    intermediate = fields.integer("intermediate_size", default=4304)
    output = fields.integer("out_hidden_size", default=3584)
    patch, frames = fields.integer("patch_size", default=16), fields.integer("temporal_patch_size", default=2)
    merge = fields.integer("spatial_merge_size", default=2) ** 2
    wide = merge * hidden
    deepstack = fields.count("deepstack_visual_indexes", deepstack, depth)
    tensors = [
        *linear("visual.patch_embed.proj", hidden, 3 * frames * patch * patch, bias=True),
        Tensor("visual.pos_embed", (fields.integer("num_position_embeddings", default=2304), hidden)),
        *repeated(vit_block(hidden, intermediate), depth, "visual.blocks"),
        *vector("visual.merger.norm", hidden, bias=True),
        *linear("visual.merger.linear_fc1", wide, wide, bias=True),
        *linear("visual.merger.linear_fc2", output, wide, bias=True),
    ]
    if deepstack:
        merger = vector("norm", wide, bias=True)
        merger += linear("linear_fc1", wide, wide, bias=True) + linear("linear_fc2", output, wide, bias=True)
        tensors += repeated(merger, deepstack, "visual.deepstack_merger_list")
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor("num_heads", of=hidden, what=COLUMNS, default=16),
        tensors=tuple(tensors),
        limits=image_limits(processor, max_pixels=4096 * 4096),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=output,
        extra_outputs=deepstack,
        fp32_rope=True,
    )


def glm4v(fields: ConfigFields, processor: ConfigFields) -> TowerSpec:
    """GLM-4V: blocks as wide inside as what they hand over; `intermediate_size` is the merger's."""
    hidden = fields.integer("hidden_size", default=1536)
    depth = fields.layer_count("depth", default=24)
    output = fields.integer("out_hidden_size", default=4096)
    patch, frames = fields.integer("patch_size", default=14), fields.integer("temporal_patch_size", default=2)
    image = fields.edge("image_size", default=336)
    merge_edge = fields.integer("spatial_merge_size", default=2)
    wide = fields.integer("intermediate_size", default=13696)
    bias = fields.boolean("attention_bias", False)
    block = vit_block(hidden, output, qkv_bias=bias, out_bias=False, mlp_bias=False, gated=True, norm_bias=False)
    tensors = [
        Tensor("visual.embeddings.position_embedding", (patches(fields, image, patch), hidden)),
        *linear("visual.patch_embed.proj", hidden, 3 * frames * patch * patch, bias=True),
        *repeated(block, depth, "visual.blocks"),
        *norms(hidden, "visual.post_conv_layernorm", "visual.post_layernorm"),
        *linear("visual.downsample", output, hidden * merge_edge**2, bias=True),
        *linear("visual.merger.proj", output, output),
        *vector("visual.merger.post_projection_norm", output, bias=True),
        *linear("visual.merger.gate_proj", wide, output),
        *linear("visual.merger.up_proj", wide, output),
        *linear("visual.merger.down_proj", output, wide),
    ]
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=output,
        layers=depth,
        heads=fields.divisor("num_heads", of=hidden, what=COLUMNS, default=12),
        tensors=tuple(tensors),
        limits=image_limits(processor, max_pixels=12288 * 28 * 28),
        pixels_per_patch=patch * patch,
        merge=merge_edge**2,
        output=output,
        gated=True,
        fp32_rope=True,
    )
