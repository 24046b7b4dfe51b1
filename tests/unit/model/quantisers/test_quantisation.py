"""Quantised formats: their bytes, worked out by hand, and the ones that are refused by name."""

from __future__ import annotations

import time
from typing import Any

import pytest

from brim.errors import InputError, InvalidConfig, UnsupportedModel
from brim.model.config import read_config
from brim.model.quantisers.weight_formats import MXFP4, MXFP8, matrix_bytes
from brim.model.weights import weight_bytes
from brim.records.model import Dtype, Quantisation, WeightFormat
from tests.unit.model.test_config import LLAMA

# The matrices of Llama 3.1 8B's layers: (rows, columns) of q, k, v, o, gate, up, down.
MATRICES = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336)]
ELEMENTS = 32 * sum(rows * columns for rows, columns in MATRICES)
REST = 2 * (8_030_261_248 - ELEMENTS)  # embeddings, norms and head in bf16


def quantised(**fields: Any) -> dict[str, Any]:
    return {**LLAMA, "quantization_config": fields}


def quantisation_of(**fields: Any) -> Quantisation:
    found = read_config(quantised(**fields), name="x").quantisation
    assert found is not None
    return found


def bytes_of(**fields: Any) -> int:
    return weight_bytes(read_config(quantised(**fields), name="x")).total_bytes


def mx(element: str = "fp4", **changes: Any) -> dict[str, Any]:
    return {"dtype": element, "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0", **changes}


QUARK_FP8 = {
    "quant_method": "quark",
    "global_quant_config": {
        "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True},
        "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False},
        "output_tensors": None,
        "bias": None,
    },
    "exclude": ["lm_head"],
    "export": {"weight_format": "real_quantized", "pack_method": "reorder", "kv_cache_group": []},
    "layer_quant_config": {},
    "layer_type_quant_config": {},
}


def test_quark_fp8() -> None:
    assert bytes_of(**QUARK_FP8) == REST + ELEMENTS + 32 * 7 * 8  # a scale of weights and one of inputs
    by_row = {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_channel"}, "input_tensors": {"is_dynamic": True}}
    rows = 32 * sum(rows for rows, _ in MATRICES)
    assert bytes_of(**{**QUARK_FP8, "global_quant_config": by_row}) == REST + ELEMENTS + 4 * rows


@pytest.mark.parametrize(
    "weight", [mx(), mx("fp4_e2m1"), {"dtype": "mx", "mx_element_dtype": "fp4", "qscheme": "per_group"}]
)
def test_quark_mxfp4(weight: dict[str, Any]) -> None:
    fields = {**QUARK_FP8, "global_quant_config": {"weight": weight}}
    assert bytes_of(**fields) == REST + ELEMENTS // 2 + ELEMENTS // 32


def test_quark_formats_by_layer() -> None:
    layers = {"*.mlp.*": {"weight": mx("fp8_e4m3")}, "*self_attn.o_proj": {"weight": None}}
    found = quantisation_of(**{**QUARK_FP8, "global_quant_config": {"weight": mx()}, "layer_quant_config": layers})
    assert (found.default, found.overrides) == (MXFP4, (("*.mlp.*", MXFP8),))
    assert found.excluded == ("lm_head", "*self_attn.o_proj")


@pytest.mark.parametrize("place", ["layer_quant_config", "kv_cache_quant_config"])
def test_quark_kv_cache(place: str) -> None:
    """Older files list the layers whose output is the cache; newer ones have a config of its own for it."""
    outputs = {name: {"output_tensors": {"dtype": "fp8_e4m3"}} for name in ("*k_proj", "*v_proj")}
    export = {"kv_cache_group": ["*k_proj", "*v_proj"] if place == "layer_quant_config" else []}
    assert quantisation_of(**{**QUARK_FP8, "export": export, place: outputs}).kv_dtype is Dtype.FP8
    assert quantisation_of(**QUARK_FP8).kv_dtype is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"global_quant_config": {"weight": {"dtype": "int4", "qscheme": "per_group"}}}, r"weight\.dtype.*'int4'"),
        ({"global_quant_config": {"weight": mx(group_size=16)}}, r"weight\.group_size"),
        ({"global_quant_config": {"weight": mx("int3")}}, r"weight\.dtype.*int3"),
        ({"layer_type_quant_config": {"Linear": {}}}, "layer_type_quant_config"),
        ({"export": {"weight_format": "fake_quantized"}}, r"export\.weight_format"),
        ({"kv_cache_quant_config": {"*k": {"output_tensors": {"dtype": "fp4"}}}}, r"output_tensors\.dtype.*'fp4'"),
    ],
)
def test_quark_formats_of_unknown_size_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"quantization_config.*{named}"):
        read_config(quantised(**{**QUARK_FP8, **changes}), name="x")


def test_bitsandbytes_4bit() -> None:
    blocks, matrices = ELEMENTS // 64, 32 * 7
    plain = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert bytes_of(**plain) == REST + ELEMENTS // 2 + 4 * blocks + 64 * matrices
    double = {**plain, "bnb_4bit_use_double_quant": True}
    nested = sum(-(-rows * columns // (64 * 256)) * 4 for rows, columns in MATRICES) * 32
    assert bytes_of(**double) == REST + ELEMENTS // 2 + blocks + nested + (64 + 1024 + 4) * matrices


def test_bitsandbytes_8bit() -> None:
    rows = 32 * sum(rows for rows, _ in MATRICES)
    assert bytes_of(quant_method="bitsandbytes", load_in_8bit=True) == REST + ELEMENTS + 4 * rows
    assert bytes_of(load_in_8bit=True, load_in_4bit=False) == REST + ELEMENTS + 4 * rows  # as before it had a name
    with pytest.raises(InvalidConfig, match=r"quantization_config\.load_in_4bit"):
        read_config(quantised(quant_method="bitsandbytes"), name="x")


@pytest.mark.parametrize(
    "method",
    [
        "eetq",
        "gguf",
        "vptq",
        "higgs",
        "spqr",
        "fp_quant",
        "quanto",
        "auto_awq",
    ],
)
def test_other_methods_are_refused_by_name(method: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"quantization_config.quant_method': '{method}'.*--weights"):
        read_config(quantised(quant_method=method, bits=4, group_size=128), name="x")


def test_a_method_left_out_is_not_plain_weights() -> None:
    with pytest.raises(InvalidConfig, match=r"quantization_config\.quant_method': missing"):
        read_config(quantised(activation_scheme="dynamic"), name="x")
    assert read_config({**LLAMA, "quantization_config": {}}, name="x").quantisation is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"quant_method": "awq", "version": "gemv_fast"}, "version"),
        ({"quant_method": "awq", "bits": 5}, "bits"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "weight_block_size"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "INT4"}, "kv_cache_scheme"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}, "format"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 4}}, "kv_cache_scheme"),
    ],
)
def test_layouts_of_unknown_size_are_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=rf"'quantization_config\.(sparsity_config\.)?{named}'"):
        read_config(quantised(**fields), name="x")


def compressed(**weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("weights", "a_matrix_of_256_by_512"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, 256 * 512 + 8),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, 256 * 512 + 256 * 2),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 128]}, 256 * 512 + 16 * 4),
        ({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}, 256 * 512 + 256 * 16),
        ({"num_bits": 4, "type": "float", "group_size": 16}, 256 * 256 + 256 * 32 + 8),
        ({"num_bits": 4, "type": "float", "group_size": 32}, 256 * 256 + 256 * 16),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, 256 * 512 + 256 * 2),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}, 256 * 256 + 256 * 4 * 2 + 16),
        (
            {"num_bits": 4, "strategy": "group", "group_size": 128, "symmetric": False, "actorder": "group"},
            256 * 256 + 256 * 4 * 2 + 256 * 4 // 2 + 512 * 4 + 16,
        ),
    ],
)
def test_compressed_tensors(weights: dict[str, Any], a_matrix_of_256_by_512: int) -> None:
    stored = quantisation_of(**compressed(**weights)).default
    assert isinstance(stored, WeightFormat)
    assert matrix_bytes(stored, 256, 512) == a_matrix_of_256_by_512


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "token"}, "strategy"),
        ({"num_bits": 4, "type": "float", "group_size": 64}, "group_size"),
        ({"num_bits": 4, "type": "int", "strategy": "group"}, "group_size"),
        ({"num_bits": 4, "type": "int", "strategy": "tensor_group"}, "strategy"),
        ({"num_bits": 3, "type": "int"}, "num_bits"),
        ({"num_bits": 8, "type": "complex"}, "num_bits"),
    ],
)
def test_schemes_of_unknown_size_are_named(weights: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=f"weights.{named}'"):
        read_config(quantised(**compressed(**weights)), name="x")


def test_a_kv_cache_is_stated_in_several_places() -> None:
    for scheme in ({"num_bits": 8, "type": "float"}, "FP8"):
        fields = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": scheme}
        assert quantisation_of(**fields).kv_dtype is Dtype.FP8
    both = compressed(num_bits=8, type="int")
    assert quantisation_of(**both, kv_cache_scheme={"num_bits": 8, "type": "int"}).kv_dtype is Dtype.INT8


@pytest.mark.parametrize(
    "pattern", ["re:(a+)+$", "re:((.*))*x", "re:(.|a)*x", "re:" + ".*" * 9 + "x", "re:(", "re:a**"]
)
def test_a_pattern_that_cannot_be_used_is_named(pattern: str) -> None:
    with pytest.raises(UnsupportedModel, match="quantization_config"):
        bytes_of(**{**compressed(num_bits=8, type="float"), "ignore": [pattern]})


@pytest.mark.parametrize("pattern", ["re:.*.*.*.*.*Z", "*a" * 40 + "Z", "*" * 300 + "Z"])
def test_no_pattern_takes_long(pattern: str) -> None:
    started = time.perf_counter()
    bytes_of(**{**compressed(num_bits=8, type="float"), "ignore": [pattern]})
    assert time.perf_counter() - started < 20  # milliseconds; by trying every split, longer than anybody waits
