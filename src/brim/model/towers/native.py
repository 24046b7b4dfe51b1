"""Towers that take images at their own resolution: Gemma 4, MoonViT, MiniMax M3, Pixtral."""

from __future__ import annotations

from brim.model.blocks import linear, norms, vector
from brim.model.fields import LARGEST_CONTEXT, ConfigFields
from brim.model.towers.vit import COLUMNS, PUBLISHED, image_limits, repeated, vit_block
from brim.records.model import MediaLimits, MediaType, Tensor, TowerSpec


def gemma4(fields: ConfigFields, text_hidden: int) -> TowerSpec:
    """Gemma 4: the processor scales an image so that it becomes `default_output_length` tokens at most."""
    hidden = fields.integer("hidden_size", default=768)
    intermediate = fields.integer("intermediate_size", default=3072)
    depth = fields.layer_count("num_hidden_layers", default=16)
    heads = fields.integer("num_attention_heads", default=12)
    head_dim = fields.integer("head_dim", default=64)
    patch = fields.edge("patch_size", default=16)
    merge = fields.integer("pooling_kernel_size", default=3) ** 2
    block = vit_block(
        hidden,
        intermediate,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        gated=True,
        norm_bias=False,
        norm_count=4,
        attention_width=heads * head_dim,
        kv_width=fields.integer("num_key_value_heads", default=12) * head_dim,
    )
    block += norms(head_dim, "q_norm", "k_norm")
    tensors = [
        Tensor(
            "vision_tower.position_embedding_table",
            (2, fields.integer("position_embedding_size", default=10240), hidden),
        ),
        *linear("vision_tower.patch_embedder.input_proj", hidden, 3 * patch * patch),
        *repeated(block, depth, "vision_tower.encoder.layers"),
        *linear("embed_vision.embedding_projection", text_hidden, hidden),
    ]
    tokens = fields.integer("default_output_length", default=280)
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=heads,
        tensors=tuple(tensors),
        limits=MediaLimits("the config's tokens per image", max_pixels=tokens * merge * patch * patch),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=text_hidden,
        gated=True,
    )


def moonvit(fields: ConfigFields, text_hidden: int, processor: ConfigFields, *, patches: int) -> TowerSpec:
    """MoonViT of Kimi-VL and Kimi K2.5 and after."""
    hidden = fields.integer("hidden_size", "vt_hidden_size", default=1152)
    intermediate = fields.integer("intermediate_size", "vt_intermediate_size", default=4304)
    depth = fields.layer_count("num_hidden_layers", "vt_num_hidden_layers", default=27)
    attention_width = fields.integer("qkv_hidden_size", default=hidden)
    patch = fields.edge("patch_size", default=14)
    kernel = fields.pair("merge_kernel_size", (2, 2))
    merge = kernel[0] * kernel[1]
    rms = fields.text("norm_type") == "rmsnorm"
    bias = fields.boolean("attn_bias", True)
    linear_bias = fields.boolean("linear_bias", True)
    height = fields.integer("init_pos_emb_height", "pos_emb_height", default=64)
    width = fields.integer("init_pos_emb_width", "pos_emb_width", default=64)
    block = vit_block(
        hidden,
        intermediate,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=linear_bias,
        norm_bias=not rms,
        attention_width=attention_width,
    )
    wide = hidden * merge
    tensors = [
        *linear(
            "vision_tower.patch_embed.proj",
            hidden,
            3 * patch * patch,
            bias=fields.boolean("patch_embed_proj_bias", True),
        ),
        Tensor("vision_tower.patch_embed.pos_emb", (height * width, hidden)),
        *repeated(block, depth, "vision_tower.layers"),
        *vector("vision_tower.final_layernorm", hidden, bias=not rms),
        *vector("mm_projector.pre_norm", hidden, bias=True),
        *linear("mm_projector.in_proj", wide, wide, bias=True),
        *linear("mm_projector.out_proj", text_hidden, wide, bias=True),
    ]
    limit = processor.optional_integer("in_patch_limit", "in_token_limit", maximum=LARGEST_CONTEXT)
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor(
            "num_attention_heads", "vt_num_attention_heads", of=attention_width, what=COLUMNS, default=16
        ),
        tensors=tuple(tensors),
        limits=MediaLimits(
            "preprocessor_config.json" if limit else PUBLISHED, max_pixels=(limit or patches) * patch * patch
        ),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=text_hidden,
        fp32_rope=True,
    )


def minimax_m3(fields: ConfigFields, top: ConfigFields, text_hidden: int, processor: ConfigFields) -> TowerSpec:
    hidden = fields.integer("hidden_size", default=1280)
    intermediate = fields.integer("intermediate_size", default=5120)
    depth = fields.layer_count("num_hidden_layers", default=32)
    patch, frames = fields.edge("patch_size", default=14), fields.integer("temporal_patch_size", default=2)
    inner = top.integer("projector_hidden_size", default=text_hidden)
    name = "multi_modal_projector"
    tensors = [
        *linear("vision_tower.embeddings.proj", hidden, 3 * frames * patch * patch),
        *vector("vision_tower.pre_layrnorm", hidden, bias=True),
        *repeated(vit_block(hidden, intermediate), depth, "vision_tower.layers"),
        *linear(f"{name}.linear_1", inner, hidden, bias=True),
        *linear(f"{name}.linear_2", text_hidden, inner, bias=True),
        *linear(f"{name}.merge_linear_1", inner, 4 * text_hidden, bias=True),
        *linear(f"{name}.merge_linear_2", text_hidden, inner, bias=True),
    ]
    edge = fields.edge("image_size", default=2016)
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor("num_attention_heads", of=hidden, what=COLUMNS, default=16),
        tensors=tuple(tensors),
        limits=image_limits(processor, max_pixels=edge * edge, source="the config's image size"),
        pixels_per_patch=patch * patch,
        merge=4,
        output=text_hidden,
        fp32_rope=True,
    )


def pixtral(fields: ConfigFields, top: ConfigFields, text_hidden: int, *, merges: bool = True) -> TowerSpec:
    """Pixtral's tower: as Mistral 3 uses it, or without merging patches, as a LLaVA."""
    hidden = fields.integer("hidden_size", default=1024)
    intermediate = fields.integer("intermediate_size", default=4096)
    depth = fields.layer_count("num_hidden_layers", default=24)
    patch, image = fields.edge("patch_size", default=14), fields.edge("image_size", default=1540)
    merge = top.integer("spatial_merge_size", default=2) ** 2 if merges else 1
    bias = top.boolean("multimodal_projector_bias", not merges)
    block = vit_block(hidden, intermediate, qkv_bias=False, out_bias=False, mlp_bias=False, gated=True, norm_bias=False)
    merging = linear("multi_modal_projector.patch_merger.merging_layer", hidden, hidden * merge)
    tensors = [
        *linear("vision_tower.patch_conv", hidden, 3 * patch * patch),
        *vector("vision_tower.ln_pre", hidden),
        *repeated(block, depth, "vision_tower.transformer.layers"),
        *([*vector("multi_modal_projector.norm", hidden), *merging] if merges else []),
        *linear("multi_modal_projector.linear_1", text_hidden, hidden, bias=bias),
        *linear("multi_modal_projector.linear_2", text_hidden, text_hidden, bias=bias),
    ]
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor("num_attention_heads", of=hidden, what=COLUMNS, default=16),
        tensors=tuple(tensors),
        limits=MediaLimits("the tower's image size", max_pixels=image * image),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=text_hidden,
        gated=True,
        fp32_rope=False,
    )
