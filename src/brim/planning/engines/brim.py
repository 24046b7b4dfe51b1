"""Brim's own engine. Its sizes are options of `brim serve`, which proves them; `brim generate` has the same ones."""

from __future__ import annotations

from brim.model.kv import KvStorage
from brim.planning.engines.record import Algorithm, EngineRules, Sizes
from brim.planning.engines.writing import media_notes, option, several, switch
from brim.records.memory import SCORING_BYTES
from brim.records.model import Dtype
from brim.version import __version__

_DRAFTS = {Algorithm.DRAFT_MODEL: "--draft"}


def _flags(sizes: Sizes) -> list[str]:
    draft = sizes.draft
    return [
        *option("--kv-tokens", sizes.kv_tokens),
        *option("--max-len", sizes.max_len),
        *option("--max-seqs", sizes.max_seqs),
        *option("--batch-tokens", sizes.batch_tokens),
        *option("--kv-dtype", sizes.kv_dtype),
        *option("--dtype", sizes.other_plain_weights),
        *option("--tp", several(sizes.ranks)),
        *option("--image-pixels", sizes.image_pixels),
        *option("--draft", draft.model if draft else None),
        *option("--draft-tokens", draft.tokens if draft else None),
        *switch("--no-graphs", not sizes.graphs),
    ]


def _notes(sizes: Sizes) -> list[str]:
    return media_notes(sizes, "brim", pixels=True)


BRIM = EngineRules(
    name="brim",
    version=__version__,
    block_tokens=16,
    storage=lambda step: KvStorage(window_slack=step),
    slack_percent=10,
    note="keeps, in sliding layers, the window and the tokens of a step",
    launch=("brim", "serve"),
    flags=_flags,
    notes=_notes,
    scoring_bytes=SCORING_BYTES,
    drafts=_DRAFTS,
    drafts_on_several=False,
    strict_drafts=True,
    plain_only=True,
    other_kv_dtypes=frozenset({Dtype.BF16, Dtype.FP16, Dtype.FP8}),
)
