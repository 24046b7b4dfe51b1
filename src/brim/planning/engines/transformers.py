"""Continuous batching of `transformers`, which is started from Python: model and flags are arguments.

Those of the cache and of batches are fields of `ContinuousBatchingConfig`, the others arguments of `from_pretrained`.
"""

from __future__ import annotations

from brim.model.kv import KvStorage
from brim.planning.activation import AttentionKind
from brim.planning.engines.record import EngineRules, Sizes
from brim.planning.engines.writing import converted, media_notes, plain_weights
from brim.records.model import Dtype
from brim.units import ceil_div

_PAGE_TOKENS = 256
_CONVERTS = {"fp8-block": "FineGrainedFP8Config()", "int8": "BitsAndBytesConfig(load_in_8bit=True)"}


def _flags(sizes: Sizes) -> list[str]:
    stored, plain, page = converted(sizes, _CONVERTS), plain_weights(sizes), sizes.block_tokens
    fields = [
        f"num_blocks={sizes.kv_tokens // page}",
        f"max_blocks_per_request={ceil_div(sizes.max_len, page)}",
        f"max_requests_per_batch={sizes.max_seqs}",
        f"max_batch_tokens={sizes.batch_tokens}",
    ]
    fields += [f"page_size={page}"] if page != _PAGE_TOKENS else []
    fields += [] if sizes.graphs else ["use_cuda_graph=False"]
    fields += [f"quantization_config={stored}"] if stored else []
    fields += [f"dtype={plain}"] if plain else []
    fields += ["tp_plan=auto", f"tp_size={sizes.ranks}"] if sizes.ranks > 1 else []
    return fields + (["attn_implementation=eager"] if sizes.attention is AttentionKind.EAGER else [])


TRANSFORMERS = EngineRules(
    name="transformers",
    version="5.22.2",
    block_tokens=_PAGE_TOKENS,
    storage=lambda _: KvStorage(keeps_window=False),
    slack_percent=32,
    note="keeps every token in sliding layers too; models whose class has no fused attention materialise the scores",
    launch=(),
    model=lambda sizes: [f"pretrained_model_name_or_path={sizes.model}"],
    flags=_flags,
    notes=lambda sizes: media_notes(sizes, "transformers"),
    kv_dtypes=(Dtype.BF16, Dtype.FP16),
    other_kv_dtypes=frozenset(),
    converts=_CONVERTS,
    formats=frozenset({"fp8", "fp8-tensor", "awq", "gptq", "int4", "mxfp4"}),
    attention=AttentionKind.EAGER,
    attentions=frozenset(AttentionKind),
    replicates_kv_heads=False,
)
