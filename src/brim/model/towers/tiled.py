"""Towers that see an image as tiles of a fixed size: InternVL, Llama 4, Llama 3.2 Vision, Molmo, Step."""

from __future__ import annotations

from brim.model.blocks import linear, norms, vector
from brim.model.fields import ConfigFields
from brim.model.towers.vit import COLUMNS, PUBLISHED, image_limits, patches, repeated, vit_block
from brim.records.model import MediaLimits, MediaType, Tensor, TowerSpec


def internvl(
    fields: ConfigFields, top: ConfigFields, text_hidden: int, processor: ConfigFields, *, native: bool
) -> TowerSpec:
    """InternVL's ViT, in the native format and in `internvl_chat`'s; a thumbnail goes with the tiles."""
    hidden = fields.integer("hidden_size", default=1024)
    intermediate = fields.integer("intermediate_size", default=4096)
    depth = fields.layer_count("num_hidden_layers", default=24)
    image, patch = fields.edge("image_size", default=448), fields.edge("patch_size", default=14)
    qkv_bias = fields.boolean("attention_bias" if native else "qkv_bias", False)
    norm_bias = fields.text("norm_type", "layer_norm") == "layer_norm"
    block = vit_block(hidden, intermediate, qkv_bias=qkv_bias, norm_bias=norm_bias)
    block += norms(hidden, "lambda_1", "lambda_2")
    if fields.boolean("use_qk_norm" if native else "qk_normalization", False):
        block += norms(hidden, "q_norm", "k_norm")
    ratio = top.ratio("downsample_ratio", default=0.5)
    merge = max(1, round(1 / (ratio * ratio)))
    tensors = [
        Tensor("vision_tower.cls_token", (hidden,)),
        Tensor("vision_tower.position_embeddings", (patches(fields, image, patch) + 1, hidden)),
        *linear("vision_tower.patch_embeddings", hidden, 3 * patch * patch, bias=True),
        *repeated(block, depth, "vision_tower.encoder.layer"),
        *vector("multi_modal_projector.layer_norm", hidden * merge, bias=True),
        *linear("multi_modal_projector.linear_1", text_hidden, hidden * merge, bias=True),
        *linear("multi_modal_projector.linear_2", text_hidden, text_hidden, bias=True),
    ]
    tiles = top.integer("max_dynamic_patch", default=12)
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor("num_attention_heads", of=hidden, what=COLUMNS, default=16),
        tensors=tuple(tensors),
        limits=image_limits(
            processor, tile_pixels=image * image, max_tiles=tiles + 1, source="the config's tile limit"
        ),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=text_hidden,
    )


def llama4(fields: ConfigFields, text_hidden: int, processor: ConfigFields) -> TowerSpec:
    hidden = fields.integer("hidden_size", default=768)
    intermediate = fields.integer("intermediate_size", default=5632)
    depth = fields.layer_count("num_hidden_layers", default=34)
    image, patch = fields.edge("image_size", default=448), fields.edge("patch_size", default=14)
    ratio = fields.ratio("pixel_shuffle_ratio", default=0.5)
    merge = max(1, round(1 / (ratio * ratio)))
    projector = fields.integer("projector_input_dim", default=4096)
    adapted = fields.integer("projector_output_dim", default=4096)
    output = fields.integer("vision_output_dim", default=7680)
    tensors = [
        *vector("vision_model.class_embedding", hidden),
        Tensor("vision_model.positional_embedding_vlm", (patches(fields, image, patch) + 1, hidden)),
        *linear("vision_model.patch_embedding.linear", hidden, 3 * patch * patch),
        *norms(hidden, "vision_model.layernorm_pre", "vision_model.layernorm_post", bias=True),
        *repeated(vit_block(hidden, intermediate), depth, "vision_model.model.layers"),
        *linear("vision_model.vision_adapter.mlp.fc1", projector, intermediate),
        *linear("vision_model.vision_adapter.mlp.fc2", adapted, adapted),
        *linear("multi_modal_projector.linear_1", text_hidden, output),
    ]
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor("num_attention_heads", of=hidden, what=COLUMNS, default=16),
        tensors=tuple(tensors),
        limits=image_limits(processor, tile_pixels=image * image, max_tiles=17),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=text_hidden,
        fp32_rope=True,
    )


def mllama(fields: ConfigFields, text_hidden: int) -> TowerSpec:
    """Llama 3.2 Vision: local and global layers over up to four tiles, with learned tile positions."""
    hidden = fields.integer("hidden_size", default=1280)
    intermediate = fields.integer("intermediate_size", default=5120)
    local = fields.layer_count("num_hidden_layers", default=32)
    global_layers = fields.integer("num_global_layers", default=8)
    tiles = fields.integer("max_num_tiles", default=4)
    image, patch = fields.edge("image_size", default=448), fields.edge("patch_size", default=14)
    positions = patches(fields, image, patch) + 1
    ratios = fields.count("supported_aspect_ratios", 8, 1024)
    output = fields.integer("vision_output_dim", default=7680)
    block = vit_block(hidden, intermediate, qkv_bias=False, out_bias=False)
    name = "vision_model"
    tensors = [
        *vector(f"{name}.class_embedding", hidden),
        *linear(f"{name}.patch_embedding", hidden, 3 * patch * patch),
        Tensor(f"{name}.gated_positional_embedding.embedding", (positions, hidden)),
        Tensor(f"{name}.gated_positional_embedding.tile_embedding", (ratios + 1, tiles * positions * hidden)),
        Tensor(f"{name}.pre_tile_positional_embedding", (ratios + 1, tiles * hidden)),
        Tensor(f"{name}.post_tile_positional_embedding", (ratios + 1, tiles * hidden)),
        *vector(f"{name}.gates", 3),
        *norms(hidden, f"{name}.layernorm_pre", f"{name}.layernorm_post", bias=True),
        *repeated(block, local, f"{name}.transformer.layers"),
        *repeated([*block, *vector("gates", 2)], global_layers, f"{name}.global_transformer.layers"),
        *linear("multi_modal_projector", text_hidden, output, bias=True),
    ]
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=local + global_layers,
        heads=fields.divisor("attention_heads", "num_attention_heads", of=hidden, what=COLUMNS, default=16),
        tensors=tuple(tensors),
        limits=MediaLimits("the config's tile limit", tile_pixels=image * image, max_tiles=tiles),
        pixels_per_patch=patch * patch,
        merge=1,
        output=text_hidden,
        extra_outputs=fields.count("intermediate_layers_indices", 5, local),
    )


def molmo(text_hidden: int, text_intermediate: int) -> TowerSpec:
    """Molmo's CLIP tower and pooling. Its config leaves them to the code's defaults: ViT-L/14 at 336 pixels, 23 of
    24 layers run, two of them pooled two by two."""
    hidden, intermediate, depth, patch, image = 1024, 4096, 23, 14, 336
    tensors = [
        *vector("vision_backbone.class_embedding", hidden),
        Tensor("vision_backbone.positional_embedding", ((image // patch) ** 2 + 1, hidden)),
        *linear("vision_backbone.patch_embedding", hidden, 3 * patch * patch),
        *vector("vision_backbone.pre_ln", hidden, bias=True),
        *repeated(vit_block(hidden, intermediate), depth, "vision_backbone.transformer.resblocks"),
        *linear("vision_backbone.pooling.wq", hidden, 2 * hidden, bias=True),
        *linear("vision_backbone.pooling.wk", hidden, 2 * hidden, bias=True),
        *linear("vision_backbone.pooling.wv", hidden, 2 * hidden, bias=True),
        *linear("vision_backbone.pooling.wo", hidden, hidden, bias=True),
        *linear("vision_backbone.projector.w1", text_intermediate, hidden),
        *linear("vision_backbone.projector.w3", text_intermediate, hidden),
        *linear("vision_backbone.projector.w2", text_hidden, text_intermediate),
        Tensor("vision_backbone.pad_embed", (2, 2 * hidden)),
    ]
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=16,
        tensors=tuple(tensors),
        limits=MediaLimits(PUBLISHED, tile_pixels=image * image, max_tiles=13),
        pixels_per_patch=patch * patch,
        merge=4,
        output=text_hidden,
        extra_outputs=1,
    )


def step3p7(fields: ConfigFields, text_hidden: int) -> TowerSpec:
    """Step 3.7's tower."""
    hidden = fields.integer("hidden_size", "width", default=1536)
    intermediate = max(1, int(hidden * fields.ratio("mlp_ratio", default=8960 / 1536)))
    depth = fields.layer_count("num_hidden_layers", "layers", default=47)
    image, patch = fields.edge("image_size", default=728), fields.edge("patch_size", default=14)
    block = vit_block(hidden, intermediate) + norms(hidden, "lambda_1", "lambda_2")
    tensors = [
        *linear("vision_model.embeddings.patch_embedding", hidden, 3 * patch * patch),
        Tensor("vision_model.embeddings.position_embedding", (patches(fields, image, patch), hidden)),
        *vector("vision_model.pre_layernorm", hidden, bias=True),
        *repeated(block, depth, "vision_model.layers"),
        *linear("vision_model.downsampler1", 2 * hidden, 9 * hidden, bias=True),
        *linear("vision_model.downsampler2", 4 * hidden, 18 * hidden, bias=True),
        *linear("multi_modal_projector", text_hidden, 4 * hidden),
    ]
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor("num_attention_heads", "heads", of=hidden, what=COLUMNS, default=16),
        tensors=tuple(tensors),
        limits=MediaLimits("the tower's image size", tile_pixels=image * image, max_tiles=1),
        pixels_per_patch=patch * patch,
        merge=16,
        output=text_hidden,
    )
