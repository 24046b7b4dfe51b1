"""Headers as llama.cpp's converter writes them are read as the config.json that they were made from.

`converted.json` has both, of small random models of each family; `scripts/gguf_headers.py` made it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.config import MULTIMODAL, TEXT, read_config
from brim.model.gguf.configs import ARCHITECTURES
from brim.model.kv import kv_footprint
from brim.model.source import load_model
from brim.model.weights import weight_bytes
from brim.records.model import Dtype, ModelSpec
from tests.conftest import read_json
from tests.unit.model.gguf.making import F32, KEYS, stored_bytes, tensors, write

CONVERTED: dict[str, Any] = read_json(Path(__file__).with_name("converted.json"))
# Converters write another context than the config has: of a window, or without any limit for recurrent layers.
OTHER_CONTEXT = {"bloom", "falcon", "granitemoehybrid", "nemotron_h"}
# llama.cpp keeps everything where these slide.
WITHOUT_WINDOW = {"phi3"}


def make(path: Path, name: str) -> Path:
    """The file that a header is of, with zeros for weights."""
    one = CONVERTED[name]
    stored = {key: (tuple(shape), F32) for key, shape in one["tensors"].items()}
    for layers in one["layers"]:
        for index in layers["of"]:
            stored |= {f"blk.{index}.{key}": (tuple(shape), F32) for key, shape in layers["tensors"].items()}
    return write(
        path, architecture=one["architecture"], keys=one["keys"], stored=stored, general={"general.file_type": 0}
    )


def dimensions(spec: ModelSpec) -> dict[str, object]:
    footprint = kv_footprint(spec, Dtype.BF16)
    return {
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "parameters": spec.parameters,
        "kinds": [(kind.kind, kind.layers, kind.bytes_per_token, kind.window, kind.stride) for kind in footprint.kinds],
        "state": footprint.state_bytes_per_request,
        "layers": [layer.feed_forward for layer in spec.layers],
        "mixers": [layer.mixer for layer in spec.layers],
        "softcap": spec.logits_softcap,
    }


@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_model_is_the_model(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / "model.gguf", name)
    found = load_model(str(path))
    config = {**CONVERTED[name]["config"], "dtype": "float16"}
    expected = read_config({**config, "sliding_window": None} if name in WITHOUT_WINDOW else config, name="model")
    assert dimensions(found) == dimensions(expected)
    assert found.max_positions == expected.max_positions or name in OTHER_CONTEXT
    assert not found.warnings
    weights = weight_bytes(found)
    assert weights.exact
    assert weights.total_bytes == sum(int(one.n_bytes) for one in gguf.GGUFReader(path).tensors)


def test_every_architecture_is_llama_cpp_s_and_leads_to_a_family() -> None:
    assert set(ARCHITECTURES) <= {*gguf.MODEL_ARCH_NAMES.values()}
    assert {one["architecture"] for one in CONVERTED.values()} <= set(ARCHITECTURES)
    assert len(ARCHITECTURES) > 60
    assert {name.split()[0] for name in CONVERTED} <= {*TEXT, *MULTIMODAL}


def test_an_architecture_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"general\.architecture': 'rwkv7' is not a supported.*llama, llama4"):
        load_model(str(write(tmp_path / "m.gguf", architecture="rwkv7")))
    with pytest.raises(UnsupportedModel, match="'nomic-bert' is an encoder"):
        load_model(str(write(tmp_path / "n.gguf", architecture="nomic-bert")))


def test_a_missing_dimension_is_named(tmp_path: Path) -> None:
    keys = {key: value for key, value in KEYS.items() if key != "block_count"}
    with pytest.raises(InvalidConfig, match=r"m\.gguf: llama\.block_count"):
        load_model(str(write(tmp_path / "m.gguf", keys=keys)))
    keys = {key: value for key, value in KEYS.items() if key != "attention.head_count"}
    with pytest.raises(InvalidConfig, match="num_attention_heads"):
        load_model(str(write(tmp_path / "n.gguf", keys=keys)))


def test_dimensions_that_are_not_those_of_the_tensors_are_told(tmp_path: Path) -> None:
    spec = load_model(str(write(tmp_path / "m.gguf", keys={**KEYS, "feed_forward_length": 2048})))
    assert any("weights are exact, but KV may not be" in warning for warning in spec.warnings)
    assert spec.files_bytes == stored_bytes(tensors())
