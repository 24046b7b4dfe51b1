"""What several architectures of GGUF have in common: mixtures and windows under the names of configs."""

from __future__ import annotations

from typing import Any

from brim.model.families.common import FULL, SLIDING
from brim.model.gguf.fields import HeaderFields

Config = dict[str, Any]


def experts(fields: HeaderFields, counts: str = "num_experts", **more: Any) -> Config:
    """The mixture of a header, under the names of a family."""
    return {
        counts: fields.raw("expert_count"),
        "num_experts_per_tok": fields.raw("expert_used_count"),
        "moe_intermediate_size": fields.first("expert_feed_forward_length", "feed_forward_length"),
        "first_k_dense_replace": fields.raw("leading_dense_block_count"),
        "n_shared_experts": fields.raw("expert_shared_count"),
        "shared_expert_intermediate_size": fields.raw("expert_shared_feed_forward_length"),
        **more,
    }


def windows(fields: HeaderFields) -> Config:
    """The window, and which layers slide, where the header says so; else the family knows."""
    pattern = fields.raw("attention.sliding_window_pattern")
    window = fields.raw("attention.sliding_window") or None
    if not isinstance(pattern, list):
        return {"sliding_window": window, **({"sliding_window_pattern": pattern} if pattern and window else {})}
    kinds = [SLIDING if slides else FULL for slides in fields.by_layer("attention.sliding_window_pattern")]
    return {"sliding_window": window, "layer_types": kinds}
