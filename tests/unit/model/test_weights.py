from __future__ import annotations

from dataclasses import replace

import pytest

from brim.errors import InvalidRequest, UnsupportedModel
from brim.model.catalogue import entries
from brim.model.config import read_config
from brim.model.quantisers.weight_formats import FP8_BLOCK, FP8_CHANNEL, MXFP4, NAMED_FORMATS, NVFP4, matrix_bytes
from brim.model.source import load_model
from brim.model.weights import check_tensor_parallel, weight_bytes
from brim.records.model import Dtype
from brim.units import GIB
from tests.unit.model.test_config import LLAMA

ROWS, COLUMNS = 4096, 14336
ELEMENTS = ROWS * COLUMNS


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (NVFP4, ELEMENTS // 2 + ELEMENTS // 16 + 8),
        (MXFP4, ELEMENTS // 2 + ELEMENTS // 32),
        (FP8_BLOCK, ELEMENTS + (ROWS // 128) * (COLUMNS // 128) * 4),
        (FP8_CHANNEL, ELEMENTS + ROWS * 2),
        (NAMED_FORMATS["awq"], ELEMENTS // 2 + ELEMENTS // 128 * 2 + ELEMENTS // 128 // 2),
        (NAMED_FORMATS["gptq"], ELEMENTS // 2 + ELEMENTS // 128 * 2 + ELEMENTS // 128 // 2 + COLUMNS * 4),
    ],
)
def test_formats(stored: object, expected: int) -> None:
    assert matrix_bytes(stored, ROWS, COLUMNS) == expected  # type: ignore[arg-type]


def test_plain_weights_are_parameters_times_two() -> None:
    spec = load_model("llama-3.1-8b")
    assert weight_bytes(spec).total_bytes == 2 * spec.parameters
    assert weight_bytes(spec, dtype=Dtype.FP32).total_bytes == 4 * spec.parameters


def test_gpt_oss_as_published() -> None:
    """The published checkpoint of gpt-oss-20b is 13.76 GB: experts in MXFP4, the rest in bf16."""
    assert weight_bytes(load_model("gpt-oss-20b")).total_bytes == pytest.approx(13_761_264_768, rel=1e-3)


def test_excluded_modules_stay_plain() -> None:
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    everything = weight_bytes(read_config({**LLAMA, "quantization_config": quantised}, name="x")).total_bytes
    excluded = {**quantised, "modules_to_not_convert": ["model.layers.3.mlp.down_proj", "model.layers.4"]}
    fewer = weight_bytes(read_config({**LLAMA, "quantization_config": excluded}, name="x")).total_bytes
    h, i, kv = 4096, 14336, 1024
    matrices = [(h, i), (h, h), (kv, h), (kv, h), (h, h), (i, h), (i, h), (h, i)]
    grown = sum(2 * r * c - matrix_bytes(FP8_BLOCK, r, c) for r, c in matrices)
    assert fewer - everything == grown


@pytest.mark.parametrize(
    "pattern",
    ["re:.*self_attn.*", "*self_attn*", "model.layers.*.self_attn*", "self_attn", "language_model.*.self_attn.*"],
)
def test_patterns_name_the_same_modules(pattern: str) -> None:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}
    config = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head", pattern]}
    found = weight_bytes(read_config({**LLAMA, "quantization_config": config}, name="x")).total_bytes
    mlp = 32 * (2 * matrix_bytes(FP8_CHANNEL, 14336, 4096) + matrix_bytes(FP8_CHANNEL, 4096, 14336))
    rest = 2 * (read_config(LLAMA, name="x").parameters - 32 * 3 * 4096 * 14336)
    assert found == mlp + rest


def test_a_side_file_says_how_it_is_quantised() -> None:
    sidecar = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    spec = read_config(LLAMA, name="x", quantisation=sidecar)
    assert spec.quantisation is not None
    assert spec.quantisation.kv_dtype is Dtype.FP8
    assert weight_bytes(spec).total_bytes < 0.4 * 2 * spec.parameters


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"quant_method.*'dreams'"):
        read_config({**LLAMA, "quantization_config": {"quant_method": "dreams"}}, name="x")
    with pytest.raises(UnsupportedModel, match="SEVEN_BIT"):
        read_config(LLAMA, name="x", quantisation={"quantization": {"quant_algo": "SEVEN_BIT"}})


@pytest.mark.parametrize("name", sorted(entries()))
def test_ranks_hold_their_share_and_no_less(name: str) -> None:
    spec = load_model(name)
    whole = weight_bytes(spec)
    half = weight_bytes(spec, 2)
    assert half.total_bytes == whole.total_bytes == whole.rank_bytes
    assert whole.total_bytes / 2 <= half.rank_bytes <= whole.total_bytes * 0.75


def test_ranks_that_divide_nothing() -> None:
    with pytest.raises(InvalidRequest, match="tp 3 does not divide the 32 attention heads"):
        check_tensor_parallel(load_model("llama-3.1-8b"), 3)
    with pytest.raises(InvalidRequest, match="at least 1"):
        check_tensor_parallel(load_model("llama-3.1-8b"), 0)


def test_files_win_over_dimensions() -> None:
    spec = replace(load_model("llama-3.1-8b"), files_bytes=17 * 10**9, files_detail="from headers")
    assert weight_bytes(spec).total_bytes == 17 * 10**9
    assert weight_bytes(spec).exact
    assert weight_bytes(spec, stored=NVFP4).total_bytes < 10**10


@pytest.mark.parametrize(
    ("model", "name", "published_gib"),
    [  # sizes of the files on the hub
        ("qwen3-14b", "q8_0", 14.62),
        ("qwen3-14b", "q4_k_m", 8.38),
        ("qwen3-14b", "q4_0", 7.95),
        ("qwen3-8b", "q4_k_m", 4.68),
        ("llama-3.1-8b", "q8_0", 7.95),
        ("llama-3.1-8b", "q4_k_m", 4.58),
        ("llama-3.1-8b", "q5_k_m", 5.34),
        ("llama-3.1-8b", "q6_k", 6.14),
    ],
)
def test_gguf_files_have_embeddings_and_head_quantised(model: str, name: str, published_gib: float) -> None:
    found = weight_bytes(load_model(model), 1, NAMED_FORMATS[name])
    assert found.total_bytes / GIB == pytest.approx(published_gib, rel=0.01)
    assert found.hypothetical


def test_a_format_that_is_asked_for_is_a_range() -> None:
    spec = load_model("qwen3-8b")
    found = weight_bytes(spec, 1, NAMED_FORMATS["nvfp4"])
    assert found.hypothetical
    assert "6.0 GiB with all matrices of the layers in it, 8.0 GiB where attention is not" in found.detail
    assert not weight_bytes(spec).hypothetical


@pytest.mark.parametrize(
    ("name", "published_gb"),
    [
        ("gemma-4-31b-nvfp4", 32.63),  # its attention is left in bf16
        ("llama-3.1-8b-nvfp4", 6.03),
        ("Qwen3-8B-AWQ", 6.10),
        ("qwen3-8b-fp8", 9.44),
    ],
)
def test_published_quantised_versions_need_no_network(name: str, published_gb: float) -> None:
    found = weight_bytes(load_model(name))
    assert found.total_bytes / 1e9 == pytest.approx(published_gb, rel=0.005)
    assert not found.hypothetical
