"""SigLIP and the models that put their own projector behind it: Gemma 3, LFM2-VL, MiniCPM-V, VILA."""

from __future__ import annotations

from brim.model.blocks import linear, norms, vector
from brim.model.fields import ConfigFields
from brim.model.towers.vit import COLUMNS, image_limits, patches, repeated, vit_block
from brim.records.model import MediaLimits, MediaType, Tensor, TowerSpec


def siglip(fields: ConfigFields, *, pooled: bool, positions: int = 0) -> tuple[int, int, int, int, list[Tensor]]:
    """A SigLIP encoder: (hidden, intermediate, layers, patch edge, tensors).

    `pooled` is for classes that build the pooling head unless the config says otherwise."""
    hidden = fields.integer("hidden_size", default=768)
    intermediate = fields.integer("intermediate_size", default=3072)
    depth = fields.layer_count("num_hidden_layers", default=12)
    patch = fields.edge("patch_size", default=16)
    positions = positions or patches(fields, fields.edge("image_size", default=224), patch)
    tensors = [
        *linear("vision_tower.embeddings.patch_embedding", hidden, 3 * patch * patch, bias=True),
        Tensor("vision_tower.embeddings.position_embedding", (positions, hidden)),
        *repeated(vit_block(hidden, intermediate), depth, "vision_tower.encoder.layers"),
        *vector("vision_tower.post_layernorm", hidden, bias=True),
    ]
    if pooled and fields.boolean("vision_use_head", True):
        name = "vision_tower.head"
        tensors += vector(f"{name}.probe", hidden) + vector(f"{name}.layernorm", hidden, bias=True)
        tensors += linear(f"{name}.attention.in_proj", 3 * hidden, hidden, bias=True)
        tensors += linear(f"{name}.attention.out_proj", hidden, hidden, bias=True)
        tensors += linear(f"{name}.mlp.fc1", intermediate, hidden, bias=True)
        tensors += linear(f"{name}.mlp.fc2", hidden, intermediate, bias=True)
    return hidden, intermediate, depth, patch, tensors


def _siglip_tower(
    fields: ConfigFields,
    extra: list[Tensor],
    limits: MediaLimits,
    merge: int,
    output: int,
    *,
    pooled: bool = False,
    positions: int = 0,
) -> TowerSpec:
    hidden, intermediate, depth, patch, tensors = siglip(fields, pooled=pooled, positions=positions)
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor("num_attention_heads", of=hidden, what=COLUMNS, default=12),
        tensors=(*tensors, *extra),
        limits=limits,
        pixels_per_patch=patch * patch,
        merge=merge,
        output=output,
    )


def gemma3(fields: ConfigFields, text_hidden: int, tokens_per_image: int) -> TowerSpec:
    hidden = fields.integer("hidden_size", default=768)
    image, patch = fields.edge("image_size", default=224), fields.edge("patch_size", default=16)
    extra = [
        Tensor("multi_modal_projector.mm_input_projection_weight", (hidden, text_hidden)),
        *vector("multi_modal_projector.mm_soft_emb_norm", hidden),
    ]
    limits = MediaLimits("the tower's fixed image size", tile_pixels=image * image, max_tiles=1)
    merge = max(1, (image // patch) ** 2 // tokens_per_image)
    return _siglip_tower(fields, extra, limits, merge, text_hidden, pooled=True)


def lfm2_vl(fields: ConfigFields, top: ConfigFields, text_hidden: int, processor: ConfigFields) -> TowerSpec:
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
        fields,
        extra,
        limits,
        factor * factor,
        text_hidden,
        pooled=True,
        positions=fields.integer("num_patches", default=256),
    )


def minicpmv(fields: ConfigFields, top: ConfigFields, text_hidden: int) -> TowerSpec:
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


def minicpmv4_6(fields: ConfigFields, top: ConfigFields, text_hidden: int) -> TowerSpec:
    hidden, intermediate = fields.integer("hidden_size"), fields.integer("intermediate_size")
    window = fields.pair("window_kernel_size", (2, 2))
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
    kernel = top.pair("merge_kernel_size", (2, 2))
    merged = hidden * kernel[0] * kernel[1]
    times = top.layer_count("merger_times", default=1)
    for index in range(times):
        last = index == times - 1
        extra += vector(f"merger.mlp.{index}.pre_norm", merged, bias=True)
        extra += linear(f"merger.mlp.{index}.linear_1", merged, merged, bias=True)
        extra += linear(f"merger.mlp.{index}.linear_2", text_hidden if last else hidden, merged, bias=True)
    edge = top.integer("image_size", default=1120)
    limits = MediaLimits("the config's image size", tile_pixels=edge * edge, max_tiles=1)
    return _siglip_tower(fields, extra, limits, inner * kernel[0] * kernel[1], text_hidden)


def vila(fields: ConfigFields, text_hidden: int) -> TowerSpec:
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


def deepseek_vl2(fields: ConfigFields, projector: ConfigFields, text_hidden: int) -> TowerSpec:
    """DeepSeek-VL2: SigLIP in timm's spelling, two by two patches folded into one by an MLP, learned separators."""
    hidden = fields.integer("width", default=1152)
    usual = fields.merged(
        hidden_size=hidden,
        intermediate_size=int(hidden * fields.ratio("mlp_ratio", default=3.7362)),
        num_hidden_layers=fields.layer_count("layers", default=27),
        num_attention_heads=fields.integer("heads", default=16),
        patch_size=fields.edge("patch_size", default=14),
        image_size=fields.edge("image_size", default=384),
    )
    wide = int(text_hidden * projector.ratio("mlp_ratio", default=1.0))
    depth = projector.layer_count("depth", default=2)
    extra = [
        *linear("projector.layers.0", wide, 4 * hidden, bias=True),
        *(
            tensor
            for index in range(depth - 2)
            for tensor in linear(f"projector.layers.{index + 1}", wide, wide, bias=True)
        ),
        *linear("projector.layers.last", text_hidden, wide, bias=True),
        *vector("image_newline", text_hidden),
        *vector("view_seperator", text_hidden),
    ]
    edge = usual.edge("image_size")
    limits = MediaLimits("the config's tiles", tile_pixels=edge * edge, max_tiles=10)
    return _siglip_tower(usual, extra, limits, 4, text_hidden, pooled=True)
