"""CLIP's vision transformer and the models that put a projector behind it: LLaVA, LLaVA-NeXT, Phi-3 Vision."""

from __future__ import annotations

from brim.model.blocks import linear, norms, vector
from brim.model.fields import ConfigFields
from brim.model.towers.vit import COLUMNS, patches, repeated, vit_block
from brim.records.model import MediaLimits, MediaType, Tensor, TowerSpec

_LARGE_336 = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}


def llava(
    fields: ConfigFields, top: ConfigFields, text_hidden: int, *, tiles: int = 1, newline: bool = False
) -> TowerSpec:
    """LLaVA's tower; LLaVA-NeXT cuts an image into tiles, and ends their rows with a learned vector."""
    features = top.raw("vision_feature_layer")
    width = fields.integer("hidden_size", default=_LARGE_336["hidden_size"])
    seen = width * (len(features) if isinstance(features, list) else 1)
    bias = top.boolean("multimodal_projector_bias", True)
    extra = [
        *linear("multi_modal_projector.linear_1", text_hidden, seen, bias=bias),
        *linear("multi_modal_projector.linear_2", text_hidden, text_hidden, bias=bias),
        *(vector("image_newline", text_hidden) if newline else []),
    ]
    return _clip(fields, extra, tiles, merge=1, output=text_hidden)


def phi3_v(text_hidden: int, crops: int) -> TowerSpec:
    """Phi-3 Vision: CLIP ViT-L/14 at 336 pixels, four patches folded into one, and learned separators."""
    width = 4 * _LARGE_336["hidden_size"]
    extra = [
        *linear("vision_embed_tokens.img_projection.0", text_hidden, width, bias=True),
        *linear("vision_embed_tokens.img_projection.2", text_hidden, text_hidden, bias=True),
        *norms(width, "vision_embed_tokens.glb_GN", "vision_embed_tokens.sub_GN"),
    ]
    return _clip(ConfigFields({}), extra, crops + 1, merge=4, output=text_hidden)


def _clip(fields: ConfigFields, extra: list[Tensor], tiles: int, *, merge: int, output: int) -> TowerSpec:
    """The encoder with all of its layers, also those behind the one whose features are used."""
    usual = fields.behind(**_LARGE_336)
    hidden, intermediate = usual.integer("hidden_size"), usual.integer("intermediate_size")
    depth, image, patch = usual.layer_count("num_hidden_layers"), usual.edge("image_size"), usual.edge("patch_size")
    tensors = [
        *vector("vision_tower.embeddings.class_embedding", hidden),
        *linear("vision_tower.embeddings.patch_embedding", hidden, 3 * patch * patch),
        Tensor("vision_tower.embeddings.position_embedding", (patches(usual, image, patch) + 1, hidden)),
        *norms(hidden, "vision_tower.pre_layrnorm", "vision_tower.post_layernorm", bias=True),
        *repeated(vit_block(hidden, intermediate), depth, "vision_tower.encoder.layers"),
        *extra,
    ]
    return TowerSpec(
        media=MediaType.IMAGE,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=usual.divisor("num_attention_heads", of=hidden, what=COLUMNS),
        tensors=tuple(tensors),
        limits=MediaLimits("the tower's fixed image size", tile_pixels=image * image, max_tiles=tiles),
        pixels_per_patch=patch * patch,
        merge=merge,
        output=output,
    )
