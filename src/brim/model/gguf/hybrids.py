"""Headers of hybrids: layers that keep a state per request, with attention here and there, or without any.

Which layers attend is told by the heads of each, and what the others are by their tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brim.model.families.common import FULL, LINEAR
from brim.model.gguf.common import Config, experts
from brim.model.gguf.fields import HeaderFields


def _attends(fields: HeaderFields) -> list[bool]:
    """The layers of a hybrid that keep keys and values: the others have none of their heads."""
    return [bool(count) for count in fields.by_layer("attention.head_count_kv")]


def _kinds(fields: HeaderFields, others: str, attention: str = FULL) -> list[str]:
    return [attention if attends else others for attends in _attends(fields)]


def _state(fields: HeaderFields) -> tuple[Any, Any]:
    """(heads of the state, width of one)."""
    heads, inner = fields.raw("ssm.time_step_rank"), fields.raw("ssm.inner_size")
    whole = isinstance(heads, int) and isinstance(inner, int) and heads
    return heads, inner // heads if whole else None


def granite_hybrid(fields: HeaderFields) -> Config:
    hidden, inner = fields.raw("embedding_length"), fields.raw("ssm.inner_size")
    count = fields.raw("expert_count") or 0
    return {
        "model_type": "granitemoehybrid",
        **experts(fields, "num_local_experts"),
        "num_local_experts": count,
        "intermediate_size": fields.first("expert_feed_forward_length", "feed_forward_length"),
        "shared_intermediate_size": fields.first("expert_shared_feed_forward_length", "feed_forward_length"),
        "layer_types": _kinds(fields, "mamba", "attention"),
        "mamba_expand": inner // hidden if isinstance(inner, int) and isinstance(hidden, int) and hidden else None,
        "mamba_n_heads": fields.raw("ssm.time_step_rank"),
        "mamba_d_state": fields.raw("ssm.state_size"),
        "mamba_n_groups": fields.raw("ssm.group_count"),
        "mamba_d_conv": fields.raw("ssm.conv_kernel"),
    }


def falcon_h1(fields: HeaderFields) -> Config:
    heads, width = _state(fields)
    return {
        "model_type": "falcon_h1",
        "mamba_d_ssm": fields.raw("ssm.inner_size"),
        "mamba_n_heads": heads,
        "mamba_d_head": width,
        "mamba_d_state": fields.raw("ssm.state_size"),
        "mamba_n_groups": fields.raw("ssm.group_count"),
        "mamba_d_conv": fields.raw("ssm.conv_kernel"),
        "mamba_rms_norm": fields.has("blk.*.ssm_norm.weight"),
    }


def nemotron_h(fields: HeaderFields) -> Config:
    heads, width = _state(fields)

    def kind(index: int, attends: bool) -> str:
        if attends:
            return "attention"
        if fields.has(f"blk.{index}.ffn_gate_inp.weight"):
            return "moe"
        return "mlp" if fields.has(f"blk.{index}.ffn_up.weight") else "mamba"

    kinds = [kind(index, attends) for index, attends in enumerate(_attends(fields))]
    return {
        "model_type": "nemotron_h",
        **(experts(fields, "n_routed_experts") if "moe" in kinds else {"n_routed_experts": None}),
        "layers_block_type": kinds,
        "mamba_num_heads": heads,
        "mamba_head_dim": width,
        "ssm_state_size": fields.raw("ssm.state_size"),
        "n_groups": fields.raw("ssm.group_count"),
        "conv_kernel": fields.raw("ssm.conv_kernel"),
        "moe_shared_expert_intermediate_size": fields.raw("expert_shared_feed_forward_length"),
        "moe_latent_size": fields.raw("moe_latent_size"),
    }


def qwen_delta(model_type: str) -> Callable[[HeaderFields], Config]:
    def read(fields: HeaderFields) -> Config:
        heads, width = _state(fields)
        attends = _attends(fields)
        mixed = any(attends) and not all(attends)
        return {
            "model_type": model_type,
            **(experts(fields) if fields.raw("expert_count") else {}),
            **({"layer_types": _kinds(fields, LINEAR)} if mixed else {}),
            "full_attention_interval": fields.raw("full_attention_interval"),
            "linear_num_value_heads": heads,
            "linear_value_head_dim": width,
            "linear_num_key_heads": fields.raw("ssm.group_count"),
            "linear_key_head_dim": fields.raw("ssm.state_size"),
            "linear_conv_kernel_dim": fields.raw("ssm.conv_kernel"),
        }

    return read


def lfm2(fields: HeaderFields) -> Config:
    return {
        "model_type": "lfm2",
        "layer_types": _kinds(fields, "conv"),
        "conv_L_cache": fields.raw("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
        "conv_bias": fields.has("blk.*.shortconv.conv.bias"),
    }


def jamba(fields: HeaderFields) -> Config:
    """Read from its class, which needs torch: layers with keys and values are counted from the first one."""
    attends = [index for index, one in enumerate(_attends(fields)) if one]
    sparse = [index for index in range(fields.layers) if fields.has(f"blk.{index}.ffn_gate_inp.weight")]
    hidden, inner = fields.raw("embedding_length"), fields.raw("ssm.inner_size")
    return {
        "model_type": "jamba",
        "architectures": ["JambaForCausalLM"],
        "num_experts": fields.raw("expert_count") or 1,
        "num_experts_per_tok": fields.raw("expert_used_count") or 1,
        **_period("attn_layer", attends, fields.layers),
        **_period("expert_layer", sparse, fields.layers),
        "mamba_d_state": fields.raw("ssm.state_size"),
        "mamba_d_conv": fields.raw("ssm.conv_kernel"),
        "mamba_dt_rank": fields.raw("ssm.time_step_rank"),
        "mamba_expand": inner // hidden if isinstance(inner, int) and isinstance(hidden, int) and hidden else None,
    }


def _period(name: str, layers: list[int], count: int) -> Config:
    """Every how many layers one is of a kind, and which is the first."""
    every = layers[1] - layers[0] if len(layers) > 1 else count
    return {f"{name}_period": every, f"{name}_offset": layers[0] if layers else count - 1}


def mamba(fields: HeaderFields) -> Config:
    hidden, inner = fields.raw("embedding_length"), fields.raw("ssm.inner_size")
    whole = isinstance(inner, int) and isinstance(hidden, int) and hidden
    return {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "state_size": fields.raw("ssm.state_size"),
        "conv_kernel": fields.raw("ssm.conv_kernel"),
        "time_step_rank": fields.raw("ssm.time_step_rank"),
        "intermediate_size": inner,
        "expand": inner // hidden if whole else None,
    }


def mamba2(fields: HeaderFields) -> Config:
    heads, width = _state(fields)
    return {
        **mamba(fields),
        "model_type": "mamba2",
        "architectures": ["Mamba2ForCausalLM"],
        "num_heads": heads,
        "head_dim": width,
        "n_groups": fields.raw("ssm.group_count"),
    }
