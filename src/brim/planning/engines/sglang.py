"""SGLang. Its KV cache is given in tokens; the static fraction must leave room for them."""

from __future__ import annotations

from brim.model.kv import KvStorage
from brim.planning.engines.record import Algorithm, EngineRules, PlannedDraft, Sizes
from brim.planning.engines.writing import (
    as_json,
    at_least,
    converted,
    media_notes,
    option,
    other_kv,
    plain_weights,
    several,
    switch,
)
from brim.records.model import Dtype, MediaType

_BLOCK_TOKENS = 1
_KV = {Dtype.BF16: "bf16", Dtype.FP8: "fp8_e4m3"}
_CONVERTS = {"fp8": "fp8", "fp8-tensor": "fp8"}
_DRAFTS = {
    Algorithm.DRAFT_MODEL: "STANDALONE",
    Algorithm.EAGLE3: "EAGLE3",
    Algorithm.DFLASH: "DFLASH",
    Algorithm.DSPARK: "DSPARK",
}


def _flags(sizes: Sizes) -> list[str]:
    pages = sizes.block_tokens if sizes.block_tokens != _BLOCK_TOKENS else None
    return [
        *option("--max-total-tokens", sizes.kv_tokens),
        *option("--mem-fraction-static", at_least(sizes.static_bytes, sizes.free_bytes)),
        *option("--context-length", sizes.max_len),
        *option("--max-running-requests", sizes.max_seqs),
        *option("--max-mamba-cache-size", sizes.max_seqs if sizes.state_bytes else None),
        *option("--chunked-prefill-size", sizes.batch_tokens),
        *option("--page-size", pages),
        *option("--kv-cache-dtype", other_kv(sizes, _KV)),
        *option("--quantization", converted(sizes, _CONVERTS)),
        *option("--dtype", plain_weights(sizes)),
        *option("--tp-size", several(sizes.ranks)),
        *switch("--disable-decode-cuda-graph", not sizes.graphs),
        *switch("--disable-prefill-cuda-graph", not sizes.graphs),
        *_media(sizes),
        *(_speculation(sizes.draft) if sizes.draft else []),
    ]


def _media(sizes: Sizes) -> list[str]:
    if MediaType.IMAGE not in sizes.media:
        return []
    images = sizes.images_per_prompt
    pixels = sizes.image_pixels if sizes.processor_limits_pixels else None
    return [
        *option("--limit-mm-data-per-request", None if images is None else as_json({"image": images})),
        *option("--mm-process-config", None if pixels is None else as_json({"image": {"max_pixels": pixels}})),
    ]


def _speculation(draft: PlannedDraft) -> list[str]:
    named = [
        *option("--speculative-algorithm", _DRAFTS[draft.algorithm]),
        *option("--speculative-draft-model-path", draft.model),
    ]
    if draft.algorithm is Algorithm.DFLASH:
        return [*named, *option("--speculative-num-draft-tokens", draft.tokens)]
    if draft.algorithm is Algorithm.DSPARK:
        return [*named, *option("--speculative-dspark-block-size", draft.tokens)]
    return [  # a chain: one candidate a step, and the token that is verified with them
        *named,
        *option("--speculative-num-steps", draft.tokens),
        *option("--speculative-eagle-topk", 1),
        *option("--speculative-num-draft-tokens", draft.tokens + 1),
    ]


def _notes(sizes: Sizes) -> list[str]:
    states = "sglang keeps states for its prefix cache too: as many requests as planned run with --disable-radix-cache"
    return [
        *media_notes(sizes, "sglang", images=True, pixels=sizes.processor_limits_pixels),
        *([states] if sizes.state_bytes else []),
    ]


SGLANG = EngineRules(
    name="sglang",
    version="0.5.23",
    block_tokens=_BLOCK_TOKENS,
    storage=lambda step: KvStorage(window_slack=step, packed_sparse=True),
    slack_percent=32,
    note="keeps, in sliding layers, the window and the tokens of a step, and scales beside an indexer's fp8 values",
    launch=("python", "-m", "sglang.launch_server"),
    model=lambda sizes: ["--model-path", sizes.model],
    flags=_flags,
    notes=_notes,
    other_kv_dtypes=frozenset({Dtype.BF16, Dtype.FP8}),
    converts=_CONVERTS,
    formats=frozenset({"fp8-block", "int8", "awq", "gptq", "int4", "nvfp4", "mxfp4"}),
    drafts=_DRAFTS,
)
