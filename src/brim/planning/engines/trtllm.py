"""TensorRT-LLM, its PyTorch backend. The KV cache is given in tokens, in a file that the command reads."""

from __future__ import annotations

import json

from brim.model.kv import KvStorage
from brim.planning.engines.by_itself import BareStart, OwnSize
from brim.planning.engines.record import Algorithm, EngineRules, PlannedDraft, Sizes
from brim.planning.engines.writing import TORCH_NAMES, media_notes, option, other_kv, several, switch
from brim.planning.placement.record import StageRule
from brim.records.model import Dtype

_FILE = "brim-trtllm.yaml"
_BLOCK_TOKENS = 32
_STEP_TOKENS, _FREE_FRACTION = 8192, 0.9  # its defaults
_NEARLY_ALL = 0.9999  # of the memory that is free once the weights and a step have theirs
_KV = {**TORCH_NAMES, Dtype.FP8: "fp8"}
_DRAFTS = {Algorithm.DRAFT_MODEL: "Draft_Target", Algorithm.EAGLE3: "Eagle3"}


def _flags(sizes: Sizes) -> list[str]:
    return [
        *option("--max_seq_len", sizes.max_len),
        *option("--max_batch_size", sizes.max_seqs),
        *option("--max_num_tokens", sizes.batch_tokens),
        *switch("--enable_chunked_prefill", sizes.max_len > sizes.batch_tokens),
        *option("--tp_size", several(_group(sizes))),
        *option("--pp_size", several(sizes.placement.pipeline)),
        *option("--ep_size", _group(sizes) if sizes.placement.expert_parallel else None),
        *option("--config", _FILE),
    ]


def _group(sizes: Sizes) -> int:
    """Ranks of a stage: those of all replicas, whose attention is data parallel inside the group."""
    return sizes.ranks * sizes.placement.replicas


def _config(sizes: Sizes) -> dict[str, object]:
    """The fields that no option has. The lower of tokens and fraction counts, so the fraction stays out of the way."""
    cache: dict[str, object] = {"max_tokens": sizes.kv_tokens, "free_gpu_memory_fraction": _NEARLY_ALL}
    kv = other_kv(sizes, _KV)
    if kv:
        cache["dtype"] = kv
    if sizes.block_tokens != _BLOCK_TOKENS:
        cache["tokens_per_block"] = sizes.block_tokens
    if sizes.placement.host_kv_bytes:
        cache["host_cache_size"] = sizes.placement.host_kv_bytes // (sizes.ranks * sizes.placement.devices)
    config: dict[str, object] = {"kv_cache_config": cache}
    if sizes.placement.replicas > 1:
        config["enable_attention_dp"] = True
    if sizes.other_plain_weights:
        config["dtype"] = TORCH_NAMES[sizes.other_plain_weights]
    if not sizes.graphs:
        config["cuda_graph_config"] = None
    if sizes.draft:
        config["speculative_config"] = _speculation(sizes.draft)
    return config


def _speculation(draft: PlannedDraft) -> dict[str, object]:
    return {
        "decoding_type": _DRAFTS[draft.algorithm],
        "speculative_model": draft.model,
        "max_draft_len": draft.tokens,
    }


def by_itself(start: BareStart) -> OwnSize:
    """A share of what is free once the weights are loaded and a step of the most tokens has run."""
    step = start.step_bytes(start.batch_tokens or _STEP_TOKENS)
    free = start.free_bytes - start.weights_bytes - step
    return OwnSize(
        kv_bytes=int(free * _FREE_FRACTION),
        fraction=_FREE_FRACTION,
        activation_bytes=step,
        max_len=start.max_len or start.spec.max_positions,
    )


TRTLLM = EngineRules(
    name="trtllm",
    version="1.2",
    block_tokens=_BLOCK_TOKENS,
    storage=lambda _: KvStorage(),
    slack_percent=10,
    note="keeps the window in sliding layers, in blocks of 32 tokens",
    launch=("trtllm-serve", "serve"),
    flags=_flags,
    notes=lambda sizes: media_notes(sizes, "trtllm"),
    files=lambda sizes: ((_FILE, json.dumps(_config(sizes), indent=2)),),  # JSON is YAML
    other_kv_dtypes=frozenset({Dtype.FP8}),
    formats=frozenset({"fp8", "fp8-tensor", "fp8-block", "int8", "awq", "nvfp4", "mxfp4"}),
    drafts=_DRAFTS,
    by_itself=by_itself,
    stage_rule=StageRule.FIRST,
)
