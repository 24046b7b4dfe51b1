"""Vision towers: their tensors, and the largest image their processor lets through.

In: a tower's config fields, the width it hands over to, and the processor's own settings where the model directory
has them. Out: `TowerSpec`. What a processor limits to is read from `preprocessor_config.json` when it is there, else
it is the limit the family's published processor ships with.
"""

from __future__ import annotations

from brim.model.blocks import linear, norms, vector
from brim.model.fields import LARGEST_CONTEXT, Fields
from brim.records.model import Media, MediaLimits, Tensor, TowerSpec

PUBLISHED = "the family's published processor"


def image_limits(
    processor: Fields, *, max_pixels: int = 0, tile_pixels: int = 0, max_tiles: int = 0, source: str = PUBLISHED
) -> MediaLimits:
    """The processor's own limit where it states one, else the family's."""
    size = processor.child("size") if isinstance(processor.raw("size"), dict) else Fields({})
    own_pixels = processor.optional_integer("max_pixels", maximum=LARGEST_CONTEXT) or size.optional_integer(
        "longest_edge", maximum=LARGEST_CONTEXT
    )
    own_tiles = processor.optional_integer("max_dynamic_patch", "max_patches", "max_tiles", "max_image_tiles", "max_crops")
    if max_pixels and own_pixels:
        return MediaLimits("preprocessor_config.json", max_pixels=own_pixels)
    if max_tiles and own_tiles:
        return MediaLimits("preprocessor_config.json", tile_pixels=tile_pixels, max_tiles=own_tiles + 1)
    return MediaLimits(source, max_pixels=max_pixels, tile_pixels=tile_pixels, max_tiles=max_tiles)


def repeated(tensors: list[Tensor], layers: int, prefix: str) -> list[Tensor]:
    """The tensors of one block, for all blocks of a tower."""
    return [
        Tensor(f"{prefix}.{t.name}", t.shape, t.units, t.linear, t.count * layers, t.dtype) for t in tensors
    ]


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
) -> list[Tensor]:
    """One block of a vision transformer."""
    width = attention_width or hidden
    tensors = linear("attn.qkv", 3 * width, hidden, width, qkv_bias)
    tensors += linear("attn.proj", hidden, width, width, out_bias)
    for name in ("mlp.gate_proj", "mlp.up_proj") if gated else ("mlp.fc1",):
        tensors += linear(name, intermediate, hidden, intermediate, mlp_bias)
    tensors += linear("mlp.down_proj", hidden, intermediate, intermediate, mlp_bias)
    return tensors + [t for index in range(norm_count) for t in vector(f"norm{index + 1}", hidden, norm_bias)]


def qwen2_vl(fields: Fields, text_hidden: int, processor: Fields) -> TowerSpec:
    """Qwen2-VL: `embed_dim` is the tower's width, `hidden_size` what it hands over."""
    hidden = fields.integer("embed_dim", default=1280)
    depth = fields.layer_count("depth", default=32)
    intermediate = int(hidden * fields.number("mlp_ratio", default=4))
    output = fields.integer("hidden_size", default=text_hidden)
    tensors = repeated(vit_block(hidden, intermediate), depth, "visual.blocks")
    return _qwen_tower(fields, hidden, intermediate, depth, output, tensors, processor, norm_bias=True)


def qwen2_5_vl(fields: Fields, text_hidden: int, processor: Fields) -> TowerSpec:
    hidden = fields.integer("hidden_size", default=1280)
    depth = fields.layer_count("depth", default=32)
    intermediate = fields.integer("intermediate_size", default=3420)
    output = fields.integer("out_hidden_size", default=text_hidden)
    block = vit_block(hidden, intermediate, gated=True, norm_bias=False)
    tensors = repeated(block, depth, "visual.blocks")
    return _qwen_tower(fields, hidden, intermediate, depth, output, tensors, processor, norm_bias=False, gated=True)


def _qwen_tower(
    fields: Fields,
    hidden: int,
    intermediate: int,
    depth: int,
    output: int,
    tensors: list[Tensor],
    processor: Fields,
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
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.integer("num_heads", default=16),
        tensors=tuple(tensors),
        limits=image_limits(processor, max_pixels=16384 * 28 * 28),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=output,
        gated=gated,
        fp32_rope=True,
    )


def qwen3_vl(fields: Fields, text_hidden: int, processor: Fields) -> TowerSpec:
    """Qwen3-VL and the Qwen3.5 line: learned positions, and features of some layers handed over beside the last."""
    hidden = fields.integer("hidden_size", default=1152)
    depth = fields.layer_count("depth", default=27)
    intermediate = fields.integer("intermediate_size", default=4304)
    output = fields.integer("out_hidden_size", default=text_hidden)
    patch, frames = fields.integer("patch_size", default=16), fields.integer("temporal_patch_size", default=2)
    merge = fields.integer("spatial_merge_size", default=2) ** 2
    wide = merge * hidden
    deepstack = len(fields.integers("deepstack_visual_indexes"))
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
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.integer("num_heads", default=16),
        tensors=tuple(tensors),
        limits=image_limits(processor, max_pixels=4096 * 4096),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=output,
        extra_outputs=deepstack,
        fp32_rope=True,
    )


def glm4v(fields: Fields, text_hidden: int, processor: Fields) -> TowerSpec:
    """GLM-4V: blocks as wide inside as what they hand over; `intermediate_size` is the merger's."""
    hidden = fields.integer("hidden_size", default=1536)
    depth = fields.layer_count("depth", default=24)
    output = fields.integer("out_hidden_size", default=text_hidden)
    patch, frames = fields.integer("patch_size", default=14), fields.integer("temporal_patch_size", default=2)
    image = fields.edge("image_size", default=336)
    merge_edge = fields.integer("spatial_merge_size", default=2)
    wide = fields.integer("intermediate_size", default=13696)
    bias = fields.boolean("attention_bias", False)
    block = vit_block(hidden, output, qkv_bias=bias, out_bias=False, mlp_bias=False, gated=True, norm_bias=False)
    tensors = [
        Tensor("visual.embeddings.position_embedding", ((image // patch) ** 2, hidden)),
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
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=output,
        layers=depth,
        heads=fields.integer("num_heads", default=12),
        tensors=tuple(tensors),
        limits=image_limits(processor, max_pixels=12288 * 28 * 28),
        pixels_per_patch=patch * patch,
        merge=merge_edge**2,
        output=output,
        gated=True,
        fp32_rope=True,
    )


def siglip(fields: Fields, *, patch_linear: bool = False, positions: int = 0) -> tuple[int, int, int, int, list[Tensor]]:
    """A SigLIP encoder: (hidden, intermediate, layers, patch edge, tensors)."""
    hidden = fields.integer("hidden_size", default=768)
    intermediate = fields.integer("intermediate_size", default=3072)
    depth = fields.layer_count("num_hidden_layers", default=12)
    patch = fields.edge("patch_size", default=16)
    positions = positions or (fields.edge("image_size", default=224) // patch) ** 2
    tensors = [
        *linear("vision_tower.embeddings.patch_embedding", hidden, 3 * patch * patch, bias=True),
        Tensor("vision_tower.embeddings.position_embedding", (positions, hidden)),
        *repeated(vit_block(hidden, intermediate), depth, "vision_tower.encoder.layers"),
        *vector("vision_tower.post_layernorm", hidden, bias=True),
    ]
    return hidden, intermediate, depth, patch, tensors


def _siglip_tower(
    fields: Fields, extra: list[Tensor], limits: MediaLimits, merge: int, output: int, *, positions: int = 0
) -> TowerSpec:
    hidden, intermediate, depth, patch, tensors = siglip(fields, positions=positions)
    return TowerSpec(
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.integer("num_attention_heads", default=12),
        tensors=(*tensors, *extra),
        limits=limits,
        pixels_per_patch=patch * patch,
        merge=merge,
        output=output,
    )


def gemma3(fields: Fields, text_hidden: int, tokens_per_image: int) -> TowerSpec:
    hidden = fields.integer("hidden_size", default=768)
    image, patch = fields.edge("image_size", default=224), fields.edge("patch_size", default=16)
    extra = [
        Tensor("multi_modal_projector.mm_input_projection_weight", (hidden, text_hidden)),
        *vector("multi_modal_projector.mm_soft_emb_norm", hidden),
    ]
    limits = MediaLimits("the tower's fixed image size", tile_pixels=image * image, max_tiles=1)
    merge = max(1, (image // patch) ** 2 // tokens_per_image)
    return _siglip_tower(fields, extra, limits, merge, text_hidden)


def lfm2_vl(fields: Fields, top: Fields, text_hidden: int, processor: Fields) -> TowerSpec:
    hidden = fields.integer("hidden_size", default=768)
    factor = top.integer("downsample_factor", default=2)
    inner = top.integer("projector_hidden_size", default=2560)
    bias = top.boolean("projector_bias", True)
    wide = hidden * factor * factor
    extra = linear("multi_modal_projector.linear_1", inner, wide, bias=bias)
    extra += linear("multi_modal_projector.linear_2", text_hidden, inner, bias=bias)
    if top.boolean("projector_use_layernorm", True):
        extra += vector("multi_modal_projector.layer_norm", wide, bias=True)
    tile = top.integer("tile_size", default=512)
    tiles = top.integer("max_tiles", default=10)
    limits = image_limits(processor, tile_pixels=tile * tile, max_tiles=tiles + 1, source="the config's tile limit")
    return _siglip_tower(
        fields, extra, limits, factor * factor, text_hidden, positions=fields.integer("num_patches", default=256)
    )


def minicpmv(fields: Fields, top: Fields, text_hidden: int) -> TowerSpec:
    """MiniCPM-V 2.6 and 4: SigLIP, then a resampler to a fixed number of queries."""
    hidden = fields.integer("hidden_size")
    queries = top.integer("query_num", default=64)
    name = "resampler"
    extra = [
        Tensor(f"{name}.query", (queries, text_hidden)),
        *linear(f"{name}.kv_proj", text_hidden, hidden),
        *linear(f"{name}.attn.in_proj", 3 * text_hidden, text_hidden, bias=True),
        *linear(f"{name}.attn.out_proj", text_hidden, text_hidden, bias=True),
        *norms(text_hidden, f"{name}.ln_q", f"{name}.ln_kv", f"{name}.ln_post", bias=True),
        Tensor(f"{name}.proj", (text_hidden, text_hidden)),
    ]
    slices = top.child("slice_config")
    edge = slices.integer("scale_resolution", default=448)
    tiles = slices.integer("max_slice_nums", default=9) + 1
    limits = MediaLimits("the config's slice limit", tile_pixels=edge * edge, max_tiles=tiles)
    patch = fields.edge("patch_size", default=14)
    return _siglip_tower(fields, extra, limits, max(1, (edge // patch) ** 2 // queries), text_hidden)


def minicpmv4_6(fields: Fields, top: Fields, text_hidden: int) -> TowerSpec:
    hidden, intermediate = fields.integer("hidden_size"), fields.integer("intermediate_size")
    window = fields.integers("window_kernel_size") or (2, 2)
    inner = window[0] * window[1]
    wide = hidden * inner
    name = "vision_tower.vit_merger"
    extra = [
        *linear(f"{name}.self_attn.qkv", 3 * hidden, hidden, bias=True),
        *linear(f"{name}.self_attn.out_proj", hidden, hidden, bias=True),
        *vector(f"{name}.layer_norm1", hidden, bias=True),
        *vector(f"{name}.pre_norm", wide, bias=True),
        *linear(f"{name}.linear_1", intermediate * inner, wide, bias=True),
        *linear(f"{name}.linear_2", hidden, intermediate * inner, bias=True),
    ]
    kernel = top.integers("merge_kernel_size") or (2, 2)
    merged = hidden * kernel[0] * kernel[1]
    for index in range(top.integer("merger_times", default=1)):
        last = index == top.integer("merger_times", default=1) - 1
        extra += vector(f"merger.mlp.{index}.pre_norm", merged, bias=True)
        extra += linear(f"merger.mlp.{index}.linear_1", merged, merged, bias=True)
        extra += linear(f"merger.mlp.{index}.linear_2", text_hidden if last else hidden, merged, bias=True)
    edge = top.integer("image_size", default=1120)
    limits = MediaLimits("the config's image size", tile_pixels=edge * edge, max_tiles=1)
    return _siglip_tower(fields, extra, limits, inner * kernel[0] * kernel[1], text_hidden)


def internvl(fields: Fields, top: Fields, text_hidden: int, processor: Fields, *, native: bool) -> TowerSpec:
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
    ratio = top.number("downsample_ratio", default=0.5)
    merge = round(1 / (ratio * ratio)) if 0 < ratio <= 1 else 4
    tensors = [
        Tensor("vision_tower.cls_token", (hidden,)),
        Tensor("vision_tower.position_embeddings", ((image // patch) ** 2 + 1, hidden)),
        *linear("vision_tower.patch_embeddings", hidden, 3 * patch * patch, bias=True),
        *repeated(block, depth, "vision_tower.encoder.layer"),
        *vector("multi_modal_projector.layer_norm", hidden * merge, bias=True),
        *linear("multi_modal_projector.linear_1", text_hidden, hidden * merge, bias=True),
        *linear("multi_modal_projector.linear_2", text_hidden, text_hidden, bias=True),
    ]
    tiles = top.integer("max_dynamic_patch", default=12)
    return TowerSpec(
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.integer("num_attention_heads", default=16),
        tensors=tuple(tensors),
        limits=image_limits(processor, tile_pixels=image * image, max_tiles=tiles + 1, source="the config's tile limit"),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=text_hidden,
    )


def gemma4(fields: Fields, text_hidden: int) -> TowerSpec:
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
    )
    block += norms(head_dim, "q_norm", "k_norm")
    tensors = [
        Tensor("vision_tower.position_embedding_table", (2, fields.integer("position_embedding_size", default=10240), hidden)),
        *linear("vision_tower.patch_embedder.input_proj", hidden, 3 * patch * patch),
        *repeated(block, depth, "vision_tower.encoder.layers"),
        *linear("embed_vision.embedding_projection", text_hidden, hidden),
    ]
    tokens = fields.integer("default_output_length", default=280)
    return TowerSpec(
        media=Media.IMAGE,
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


def llama4(fields: Fields, text_hidden: int, processor: Fields) -> TowerSpec:
    hidden = fields.integer("hidden_size", default=768)
    intermediate = fields.integer("intermediate_size", default=5632)
    depth = fields.layer_count("num_hidden_layers", default=34)
    image, patch = fields.edge("image_size", default=448), fields.edge("patch_size", default=14)
    ratio = fields.number("pixel_shuffle_ratio", default=0.5)
    merge = round(1 / (ratio * ratio)) if 0 < ratio <= 1 else 4
    projector = fields.integer("projector_input_dim", default=4096)
    output = fields.integer("vision_output_dim", "projector_output_dim", default=projector)
    tensors = [
        *vector("vision_model.class_embedding", hidden),
        Tensor("vision_model.positional_embedding_vlm", ((image // patch) ** 2 + 1, hidden)),
        *linear("vision_model.patch_embedding.linear", hidden, 3 * patch * patch),
        *norms(hidden, "vision_model.layernorm_pre", "vision_model.layernorm_post", bias=True),
        *repeated(vit_block(hidden, intermediate), depth, "vision_model.model.layers"),
        *linear("vision_model.vision_adapter.mlp.fc1", projector, intermediate),
        *linear("vision_model.vision_adapter.mlp.fc2", output, projector),
        *linear("multi_modal_projector.linear_1", text_hidden, output),
    ]
    return TowerSpec(
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.integer("num_attention_heads", default=16),
        tensors=tuple(tensors),
        limits=image_limits(processor, tile_pixels=image * image, max_tiles=17),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=text_hidden,
        fp32_rope=True,
    )


def mllama(fields: Fields, text_hidden: int) -> TowerSpec:
    """Llama 3.2 Vision: local and global layers over up to four tiles, with learned tile positions."""
    hidden = fields.integer("hidden_size", default=1280)
    intermediate = fields.integer("intermediate_size", default=5120)
    local = fields.layer_count("num_hidden_layers", default=32)
    global_layers = fields.integer("num_global_layers", default=8)
    tiles = fields.integer("max_num_tiles", default=4)
    image, patch = fields.edge("image_size", default=448), fields.edge("patch_size", default=14)
    positions = (image // patch) ** 2 + 1
    ratios = len(fields.raw("supported_aspect_ratios") or ()) or 8
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
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=local + global_layers,
        heads=fields.integer("attention_heads", "num_attention_heads", default=16),
        tensors=tuple(tensors),
        limits=MediaLimits("the config's tile limit", tile_pixels=image * image, max_tiles=tiles),
        pixels_per_patch=patch * patch,
        merge=1,
        output=text_hidden,
        extra_outputs=len(fields.integers("intermediate_layers_indices")) or 5,
    )


def moonvit(fields: Fields, text_hidden: int, processor: Fields, *, patches: int) -> TowerSpec:
    """MoonViT of Kimi-VL and Kimi K2.5 and after."""
    hidden = fields.integer("hidden_size", "vt_hidden_size", default=1152)
    intermediate = fields.integer("intermediate_size", "vt_intermediate_size", default=4304)
    depth = fields.layer_count("num_hidden_layers", "vt_num_hidden_layers", default=27)
    attention_width = fields.integer("qkv_hidden_size", default=hidden)
    patch = fields.edge("patch_size", default=14)
    kernel = fields.integers("merge_kernel_size") or (2, 2)
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
        *linear("vision_tower.patch_embed.proj", hidden, 3 * patch * patch, bias=fields.boolean("patch_embed_proj_bias", True)),
        Tensor("vision_tower.patch_embed.pos_emb", (height * width, hidden)),
        *repeated(block, depth, "vision_tower.layers"),
        *vector("vision_tower.final_layernorm", hidden, bias=not rms),
        *vector("mm_projector.pre_norm", hidden, bias=True),
        *linear("mm_projector.in_proj", wide, wide, bias=True),
        *linear("mm_projector.out_proj", text_hidden, wide, bias=True),
    ]
    limit = processor.optional_integer("in_patch_limit", "in_token_limit", maximum=LARGEST_CONTEXT)
    return TowerSpec(
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.integer("num_attention_heads", "vt_num_attention_heads", default=16),
        tensors=tuple(tensors),
        limits=MediaLimits(
            "preprocessor_config.json" if limit else PUBLISHED, max_pixels=(limit or patches) * patch * patch
        ),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=text_hidden,
        fp32_rope=True,
    )


def minimax_m3(fields: Fields, top: Fields, text_hidden: int, processor: Fields) -> TowerSpec:
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
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.integer("num_attention_heads", default=16),
        tensors=tuple(tensors),
        limits=image_limits(processor, max_pixels=edge * edge, source="the config's image size"),
        pixels_per_patch=patch * patch,
        merge=4,
        output=text_hidden,
        fp32_rope=True,
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
        media=Media.IMAGE,
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


def vila(fields: Fields, text_hidden: int) -> TowerSpec:
    """VILA 1.5: SigLIP and a projector that folds two by two patches into one."""
    hidden = fields.integer("hidden_size", default=1152)
    image = fields.edge("image_size", default=384)
    extra = [
        *vector("mm_projector.layers.1", 4 * hidden, bias=True),
        *linear("mm_projector.layers.2", text_hidden, 4 * hidden, bias=True),
        *linear("mm_projector.layers.4", text_hidden, text_hidden, bias=True),
    ]
    limits = MediaLimits("the tower's fixed image size", tile_pixels=image * image, max_tiles=1)
    return _siglip_tower(fields, extra, limits, 4, text_hidden)


def pixtral(fields: Fields, top: Fields, text_hidden: int, processor: Fields) -> TowerSpec:
    """Pixtral's tower, as Mistral 3 uses it."""
    hidden = fields.integer("hidden_size", default=1024)
    intermediate = fields.integer("intermediate_size", default=4096)
    depth = fields.layer_count("num_hidden_layers", default=24)
    patch, image = fields.edge("patch_size", default=14), fields.edge("image_size", default=1540)
    merge = top.integer("spatial_merge_size", default=2) ** 2
    bias = top.boolean("multimodal_projector_bias", False)
    block = vit_block(
        hidden, intermediate, qkv_bias=False, out_bias=False, mlp_bias=False, gated=True, norm_bias=False
    )
    tensors = [
        *linear("vision_tower.patch_conv", hidden, 3 * patch * patch),
        *vector("vision_tower.ln_pre", hidden),
        *repeated(block, depth, "vision_tower.transformer.layers"),
        *vector("multi_modal_projector.norm", hidden),
        *linear("multi_modal_projector.patch_merger.merging_layer", hidden, hidden * merge),
        *linear("multi_modal_projector.linear_1", text_hidden, hidden, bias=bias),
        *linear("multi_modal_projector.linear_2", text_hidden, text_hidden, bias=bias),
    ]
    return TowerSpec(
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.integer("num_attention_heads", default=16),
        tensors=tuple(tensors),
        limits=MediaLimits("the tower's image size", max_pixels=image * image),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=text_hidden,
        gated=True,
        fp32_rope=False,
    )


def step3p7(fields: Fields, text_hidden: int) -> TowerSpec:
    """Step 3.7's tower."""
    hidden = fields.integer("hidden_size", "width", default=1536)
    intermediate = fields.integer("intermediate_size", default=8960)
    depth = fields.layer_count("num_hidden_layers", "layers", default=47)
    image, patch = fields.edge("image_size", default=728), fields.edge("patch_size", default=14)
    block = vit_block(hidden, intermediate) + norms(hidden, "lambda_1", "lambda_2")
    tensors = [
        *linear("vision_model.embeddings.patch_embedding", hidden, 3 * patch * patch),
        Tensor("vision_model.embeddings.position_embedding", ((image // patch) ** 2, hidden)),
        *vector("vision_model.pre_layernorm", hidden, bias=True),
        *repeated(block, depth, "vision_model.layers"),
        *linear("vision_model.downsampler1", 2 * hidden, 9 * hidden, bias=True),
        *linear("vision_model.downsampler2", 4 * hidden, 18 * hidden, bias=True),
        *linear("multi_modal_projector", text_hidden, 4 * hidden),
    ]
    return TowerSpec(
        media=Media.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.integer("num_attention_heads", "heads", default=16),
        tensors=tuple(tensors),
        limits=MediaLimits("the tower's image size", tile_pixels=image * image, max_tiles=1),
        pixels_per_patch=patch * patch,
        merge=16,
        output=text_hidden,
    )
