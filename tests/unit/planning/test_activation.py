"""The formula against peaks measured on an H200."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from brim.model.config import read_config
from brim.model.kv import KvStorage, kv_footprint
from brim.model.source import load_model
from brim.planning.activation import AttentionKind, ForwardShape, step_bytes, tower_bytes
from brim.records.model import Dtype, ModelSpec
from tests.conftest import TRUTH, needs_truth, read_json, truth_rows

OVER, UNDER = 0.25, 0.05


@cache
def spec_of(model: str) -> ModelSpec:
    return read_config(read_json(TRUTH / "configs" / model / "config.json"), name=model)


def shape_of(row: dict[str, Any]) -> ForwardShape:
    """The call that a row of the truth measured."""
    phase = row["phase"]
    attention = AttentionKind.EAGER if row["attn"] == "eager" else AttentionKind.FUSED
    if phase == "prefill_b4x1024":
        return ForwardShape(4096, sequences=4, logit_rows=4, attention=attention)
    found = re.fullmatch(r"prefill(\d+)(_alllogits|_kv)?", phase)
    assert found, phase
    tokens = int(found[1])
    return ForwardShape(tokens, logit_rows=tokens if found[2] == "_alllogits" else 1, attention=attention)


def label(row: dict[str, Any]) -> str:
    return f"{row['model']}-{row['phase']}"


@needs_truth
@pytest.mark.parametrize("row", [r for r in truth_rows() if r["phase"].startswith("prefill")], ids=label)
def test_a_step_against_the_measured_peak(row: dict[str, Any]) -> None:
    spec, shape = spec_of(row["model"]), shape_of(row)
    predicted = step_bytes(spec, shape)
    if row["phase"].endswith("_kv"):  # this call keeps its KV, sliding layers included
        predicted += kv_footprint(spec, Dtype.BF16, storage=KvStorage(keeps_window=False)).request_bytes(shape.tokens)
    assert -UNDER <= predicted / row["peak_allocated_bytes"] - 1 <= OVER


@needs_truth
@pytest.mark.parametrize("row", [r for r in truth_rows() if r["phase"].startswith("vision")], ids=label)
def test_a_tower_against_the_measured_peak(row: dict[str, Any]) -> None:
    (tower,) = spec_of(row["model"]).towers
    found = re.search(r"(\d+)patches", row["phase"])
    tiles = re.search(r"_b(\d+)", row["phase"])
    positions = (
        int(found[1]) if found else int(tiles[1]) * tower.limits.tile_pixels // tower.pixels_per_patch if tiles else 0
    )
    predicted = tower_bytes(tower, positions, 2)
    assert -UNDER <= predicted / row["peak_allocated_bytes"] - 1 <= OVER


def test_the_live_set_of_a_dense_mlp() -> None:
    """Llama 3.1 8B, by hand: three MLP-wide and four hidden-wide tensors, a position and the rotary tables."""
    expected = 8192 * (3 * 14336 * 2 + 4 * 4096 * 2 + 8 + 2 * 128 * 2)
    assert step_bytes(load_model("llama-3.1-8b"), ForwardShape(8192)) == expected


def test_the_gather_of_a_mixture_is_the_peak() -> None:
    """Gemma 4 26B-A4B: by its MLP width it would be a third of a gigabyte; the experts' gather makes it 2.5."""
    found = step_bytes(load_model("gemma-4-26b-a4b"), ForwardShape(8192))
    assert 2.4 * 2**30 < found < 2.8 * 2**30


def test_more_tokens_never_take_less_and_ranks_never_more() -> None:
    for name in ("llama-3.1-8b", "deepseek-v3", "qwen3.5-27b", "nemotron-3-nano-30b", "gpt-oss-20b", "gemma-4-e2b"):
        spec = load_model(name)
        sizes = [step_bytes(spec, ForwardShape(tokens)) for tokens in (1, 16, 256, 2048, 8192)]
        assert sizes == sorted(sizes)
        assert step_bytes(spec, ForwardShape(2048, ranks=2)) <= step_bytes(spec, ForwardShape(2048))


def test_eager_attention_holds_its_scores() -> None:
    spec = load_model("gpt-oss-20b")
    fused, eager = (step_bytes(spec, ForwardShape(8192, attention=kind)) for kind in AttentionKind)
    assert eager > 10 * fused
