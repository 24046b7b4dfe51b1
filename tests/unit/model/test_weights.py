from __future__ import annotations

from dataclasses import replace

import pytest

from brim.errors import InvalidRequest, UnsupportedModel
from brim.model.catalogue import entries
from brim.model.config import read_config
from brim.model.quantisers.gguf_mixes import Part, Place, matrix_type
from brim.model.quantisers.weight_formats import FP8_BLOCK, FP8_CHANNEL, MXFP4, NAMED_FORMATS, NVFP4, matrix_bytes
from brim.model.source import load_model
from brim.model.weights import check_tensor_parallel, weight_bytes
from brim.records.model import Dtype
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


# Sizes of files on the hub in GB (10^9), tokenizer included, as model cards list them: Qwen's own of Qwen3 8B and 14B,
# and bartowski's of Llama 3.1 8B and 70B, Mixtral 8x22B and Qwen3 30B-A3B.
PUBLISHED_GGUF: dict[str, dict[str, float]] = {
    "qwen3-14b": {"q8_0": 15.70, "q4_k_m": 9.00, "q4_0": 8.54},
    "qwen3-8b": {"q4_k_m": 5.03},
    "llama-3.1-8b": {
        "q8_0": 8.54,
        "q6_k": 6.60,
        "q5_k_m": 5.73,
        "q5_k_s": 5.60,
        "q4_k_m": 4.92,
        "q4_k_s": 4.69,
        "q4_0": 4.66,
        "iq4_xs": 4.45,
        "q3_k_l": 4.32,
        "q3_k_m": 4.02,
        "q3_k_s": 3.66,
        "iq3_m": 3.78,
        "iq3_xs": 3.52,
        "q2_k": 3.18,
        "iq2_m": 2.95,
    },
    "llama-3.1-70b": {
        "q8_0": 74.98,
        "q6_k": 57.89,
        "q5_k_m": 49.95,
        "q5_k_s": 48.66,
        "q4_k_m": 42.52,
        "q4_k_s": 40.35,
        "q4_0": 40.12,
        "iq4_xs": 37.90,
        "q3_k_l": 37.14,
        "q3_k_m": 34.27,
        "iq3_m": 31.94,
        "q3_k_s": 30.91,
    },
    "mixtral-8x22b": {
        "q5_k_m": 99.96,
        "q5_k_s": 96.97,
        "q4_k_m": 85.58,
        "q4_k_s": 80.47,
        "iq4_nl": 80.47,
        "q3_k_l": 72.57,
        "q3_k_m": 67.78,
        "iq3_m": 64.49,
        "iq3_s": 61.49,
        "q3_k_s": 61.49,
        "iq3_xs": 58.22,
        "q2_k": 52.10,
    },
    "qwen3-30b-a3b": {"q8_0": 32.48, "q6_k": 25.10, "q5_k_m": 21.74, "q5_k_s": 21.10},
}


@pytest.mark.parametrize(
    ("model", "name"), [(model, name) for model, sizes in PUBLISHED_GGUF.items() for name in sizes]
)
def test_gguf_files_are_as_large_as_published(model: str, name: str) -> None:
    found = weight_bytes(load_model(model), 1, NAMED_FORMATS[name])
    assert found.total_bytes / 1e9 == pytest.approx(PUBLISHED_GGUF[model][name], rel=0.01)
    assert found.hypothetical


def test_rows_that_are_no_whole_blocks_get_other_types() -> None:
    """Gemma 3 1B is 1,152 wide, which 256 does not divide."""
    spec = load_model("gemma-3-1b")
    wide = 1152 * 262144
    assert weight_bytes(spec, 1, NAMED_FORMATS["q4_k_m"]).total_bytes > wide * 34 // 32  # the tied head is in q8_0
    assert matrix_type("q4_k_m", Part.DOWN, Place(5, 16), 1152) == "q5_0"
    assert matrix_type("q4_k_m", Part.DOWN, Place(0, 16), 1152) == "q8_0"
    assert matrix_type("q2_k", Part.OTHER, Place(), 1152) == "iq4_nl"
    assert matrix_type("q4_0", Part.OTHER, Place(), 40) == "f16"


def test_an_mxfp4_file_has_its_experts_in_it() -> None:
    spec = replace(load_model("gpt-oss-20b"), quantisation=None)
    found = weight_bytes(spec, 1, NAMED_FORMATS["mxfp4_moe"])
    assert found.total_bytes / 1e9 == pytest.approx(12.1, rel=0.01)  # ggml-org's file with 8-bit attention


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
