"""vLLM. Its KV cache is given in bytes, which leaves nothing to its own profiling."""

from __future__ import annotations

from math import floor

from brim.model.kv import KvStorage
from brim.planning.engines.record import Algorithm, EngineRules, PlannedDraft, Sizes
from brim.planning.engines.writing import (
    TORCH_NAMES,
    as_json,
    converted,
    media_notes,
    option,
    other_kv,
    plain_weights,
    several,
    switch,
)
from brim.planning.placement.record import Placement
from brim.planning.vllm.kernels import STEPS_IN_FLIGHT
from brim.records.model import Dtype, MediaType
from brim.units import GIB

_BLOCK_TOKENS = 16
_DEFAULT_UTILISATION = 0.92
_KV = {**TORCH_NAMES, Dtype.FP8: "fp8_e4m3"}
_CONVERTS = {
    "fp8": "fp8",
    "fp8-tensor": "fp8_per_tensor",
    "fp8-block": "fp8_per_block",
    "int8": "int8_per_channel_weight_only",
}
_METHODS = frozenset(
    {
        *("fp8", "fbgemm_fp8", "awq", "gptq", "auto-round", "bitsandbytes", "compressed-tensors"),
        *("modelopt", "modelopt_fp4", "mxfp4", "quark", "torchao"),
    }
)
_DRAFTS = {
    Algorithm.DRAFT_MODEL: "draft_model",
    Algorithm.EAGLE3: "eagle3",
    Algorithm.P_EAGLE: "eagle3",
    Algorithm.DFLASH: "dflash",
    Algorithm.DSPARK: "dspark",
}

FIRST_RUNNER_DRAFTS = frozenset({Algorithm.DRAFT_MODEL, Algorithm.P_EAGLE})  # the second model runner lacks them


def _flags(sizes: Sizes) -> list[str]:
    blocks = sizes.block_tokens if sizes.block_tokens != _BLOCK_TOKENS else None
    return [
        *option("--kv-cache-memory-bytes", sizes.kv_bytes + sizes.state_bytes),
        *option("--gpu-memory-utilization", _lower_utilisation(sizes)),
        *option("--max-model-len", sizes.max_len),
        *option("--max-num-seqs", sizes.max_seqs),
        *option("--max-num-batched-tokens", sizes.batch_tokens),
        *option("--long-prefill-token-threshold", sizes.prompt_chunk),
        *option("--block-size", blocks),
        *option("--kv-cache-dtype", other_kv(sizes, _KV)),
        *option("--quantization", converted(sizes, _CONVERTS)),
        *option("--dtype", plain_weights(sizes)),
        *option("--tensor-parallel-size", several(sizes.ranks)),
        *_placement(sizes.placement),
        *switch("--enforce-eager", not sizes.graphs),
        *_media(sizes),
        *option("--speculative-config", _speculation(sizes.draft) if sizes.draft else None),
    ]


def _placement(placement: Placement) -> list[str]:
    """The size of the host's tier is that of a replica, all its ranks together."""
    adapters, host_bytes = placement.adapters, placement.host_kv_bytes // placement.replicas
    return [
        *option("--pipeline-parallel-size", several(placement.pipeline)),
        *option("--data-parallel-size", several(placement.replicas)),
        *switch("--enable-expert-parallel", placement.expert_parallel),
        *switch("--enable-lora", adapters is not None),
        *option("--max-loras", adapters.count if adapters else None),
        *option("--max-lora-rank", adapters.rank if adapters else None),
        *option("--kv-offloading-size", f"{host_bytes / GIB:.6g}" if host_bytes else None),
    ]


def _env(sizes: Sizes) -> tuple[tuple[str, str], ...]:
    """Segments that do not grow reserve more than the plan counts."""
    return (("PYTORCH_ALLOC_CONF", "expandable_segments:True"),) if sizes.growing_segments else ()


def _notes(sizes: Sizes) -> list[str]:
    chunked = (
        "vllm's first model runner makes the logits of all prompt tokens in a step at once when a request asks for "
        f"prompt log-probabilities: --long-prefill-token-threshold {sizes.prompt_chunk} keeps them within a step"
    )
    return [
        *media_notes(sizes, "vllm", images=True, pixels=sizes.processor_limits_pixels),
        *([chunked] if sizes.prompt_chunk else []),
    ]


def _lower_utilisation(sizes: Sizes) -> str | None:
    """With the cache in bytes it sizes nothing, but vLLM does not start where less than this share is free."""
    free = floor(sizes.free_bytes / sizes.usable_bytes * 100) / 100
    return f"{max(0.01, free):.2f}" if free < _DEFAULT_UTILISATION else None


def _media(sizes: Sizes) -> list[str]:
    if MediaType.IMAGE not in sizes.media:
        return []
    images = sizes.images_per_prompt
    pixels = sizes.image_pixels if sizes.processor_limits_pixels else None
    return [
        *option("--limit-mm-per-prompt", None if images is None else as_json({"image": images})),
        *option("--mm-processor-kwargs", None if pixels is None else as_json({"max_pixels": pixels})),
    ]


def _speculation(draft: PlannedDraft) -> str:
    config: dict[str, object] = {"method": _DRAFTS[draft.algorithm], "model": draft.model}
    config["num_speculative_tokens"] = draft.tokens
    if draft.algorithm is Algorithm.P_EAGLE:
        config["parallel_drafting"] = True
    return as_json(config)


VLLM = EngineRules(
    name="vllm",
    version="0.26",
    block_tokens=_BLOCK_TOKENS,
    storage=lambda step: KvStorage(window_slack=STEPS_IN_FLIGHT * step, packed_sparse=True),
    slack_percent=32,
    note="keeps, in sliding layers, the window and the tokens of two steps, and scales beside an indexer's fp8 values",
    launch=("vllm", "serve"),
    flags=_flags,
    notes=_notes,
    env=_env,
    other_kv_dtypes=frozenset({Dtype.BF16, Dtype.FP16, Dtype.FP8}),
    converts=_CONVERTS,
    formats=frozenset({"awq", "gptq", "int4", "nvfp4", "mxfp4"}),
    quantised=_METHODS,
    drafts=_DRAFTS,
    null_blocks=1,
    groups_layers=True,
    own_rules=True,
    towers_everywhere=True,
    shares_experts=True,
)
