"""Modular MAX. Its KV cache is what a share of the free memory leaves beside the weights; a batch has its cap."""

from __future__ import annotations

from brim.model.kv import KvStorage
from brim.planning.engines.by_itself import BareStart, OwnSize
from brim.planning.engines.record import Algorithm, EngineRules, Sizes
from brim.planning.engines.writing import TORCH_NAMES, at_least, media_notes, option, other_kv, plain_weights, switch
from brim.records.model import Dtype

_PAGE_TOKENS = 128
_UTILISATION, _BATCH = 0.9, 512  # its defaults
_KV = {Dtype.BF16: "bfloat16", Dtype.FP8: "float8_e4m3fn"}
_DRAFTS = {Algorithm.EAGLE3: "eagle", Algorithm.DFLASH: "dflash", Algorithm.DSPARK: "dspark"}


def _flags(sizes: Sizes) -> list[str]:
    pages = sizes.block_tokens if sizes.block_tokens != _PAGE_TOKENS else None
    devices = "gpu:" + ",".join(map(str, range(sizes.ranks))) if sizes.ranks > 1 else None
    draft = sizes.draft
    return [
        *option("--device-memory-utilization", at_least(sizes.static_bytes, sizes.free_bytes)),
        *option("--max-batch-total-tokens", sizes.kv_tokens),
        *option("--max-length", sizes.max_len),
        *option("--max-batch-size", sizes.max_seqs),
        *option("--max-batch-input-tokens", sizes.batch_tokens),
        *option("--kv-cache-page-size", pages),
        *option("--kv-cache-format", other_kv(sizes, _KV)),
        *option("--quantization-encoding", plain_weights(sizes, TORCH_NAMES)),
        *option("--devices", devices),
        *switch("--no-device-graph-capture", not sizes.graphs),
        *option("--draft-model-path", draft.model if draft else None),
        *option("--speculative-method", _DRAFTS[draft.algorithm] if draft else None),
        *option("--num-speculative-tokens", draft.tokens if draft else None),
    ]


def by_itself(start: BareStart) -> OwnSize:
    """A share of the free memory less the weights: for most models nothing is counted for a step."""
    length = start.max_len or start.spec.max_positions
    return OwnSize(
        kv_bytes=int(start.free_bytes * _UTILISATION) - start.weights_bytes,
        fraction=_UTILISATION,
        activation_bytes=0,
        max_len=length,
        most_tokens=(start.max_seqs or _BATCH) * length,
    )


MAX = EngineRules(
    name="max",
    version="26.7.0",
    block_tokens=_PAGE_TOKENS,
    storage=lambda _: KvStorage(keeps_window=False),
    slack_percent=10,
    note="keeps every token in sliding layers too, in pages of 128",
    launch=("max", "serve"),
    model=lambda sizes: ["--model-path", sizes.model],
    flags=_flags,
    notes=lambda sizes: media_notes(sizes, "max"),
    other_kv_dtypes=frozenset({Dtype.BF16, Dtype.FP8}),
    formats=frozenset({"fp8", "fp8-tensor", "fp8-block", "gptq", "nvfp4", "mxfp4"}),
    drafts=_DRAFTS,
    replicates_kv_heads=False,
    by_itself=by_itself,
)
