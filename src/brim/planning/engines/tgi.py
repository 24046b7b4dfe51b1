"""Text Generation Inference. Its KV cache is given in tokens, inside a share of the device."""

from __future__ import annotations

from brim.model.kv import KvStorage
from brim.planning.engines.record import EngineRules, Sizes
from brim.planning.engines.writing import (
    at_most,
    converted,
    media_notes,
    option,
    other_kv,
    plain_weights,
    several,
)
from brim.records.model import Dtype

_KV = {Dtype.FP8: "fp8_e4m3fn"}
_CONVERTS = {"fp8": "fp8", "fp8-tensor": "fp8", "int8": "eetq"}


def _flags(sizes: Sizes) -> list[str]:
    return [
        *option("--max-batch-total-tokens", sizes.kv_tokens),
        *option("--cuda-memory-fraction", at_most(sizes.usable_bytes - sizes.spare_bytes, sizes.usable_bytes)),
        *option("--max-total-tokens", sizes.max_len),
        *option("--max-input-tokens", max(1, sizes.max_len - 1)),
        *option("--max-batch-size", sizes.max_seqs),
        *option("--max-concurrent-requests", sizes.max_seqs),
        *option("--max-batch-prefill-tokens", sizes.batch_tokens),
        *option("--kv-cache-dtype", other_kv(sizes, _KV)),
        *option("--quantize", converted(sizes, _CONVERTS)),
        *option("--dtype", plain_weights(sizes)),
        *option("--num-shard", several(sizes.ranks)),
        *option("--cuda-graphs", None if sizes.graphs else 0),
    ]


TGI = EngineRules(
    name="tgi",
    version="3.3.7",
    block_tokens=1,
    storage=lambda _: KvStorage(keeps_window=False, keeps_latent=False),
    slack_percent=32,
    note="keeps every token in sliding layers too, and per-head keys and values for MLA",
    launch=("text-generation-launcher",),
    model=lambda sizes: ["--model-id", sizes.model],
    flags=_flags,
    notes=lambda sizes: media_notes(sizes, "tgi"),
    converts=_CONVERTS,
    formats=frozenset({"fp8-block", "awq", "gptq", "int4"}),
    replicates_kv_heads=False,
)
