from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.model.catalogue import entries
from brim.model.kv import kv_footprint
from brim.model.siblings import find_sibling
from brim.model.source import load_model
from brim.model.weights import weight_bytes
from brim.records.model import Dtype
from tests.conftest import CONFIGS, needs_configs, shared_config_names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama3.1-8b", "llama-3.1-8b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("qwen-3-8b", "qwen3-8b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("Qwen/Qwen3-VL-8B-Thinking", "qwen3-vl-8b"),
        ("google/gemma-3-27b-pt", "gemma-3-27b"),
        ("mistralai/Mistral-7B-v0.3", "mistral-7b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
    ],
)
def test_base_and_tuned_models(text: str, name: str) -> None:
    for form in (text, text.lower(), text.upper(), f" {text} "):
        found = find_sibling(form)
        assert found is not None
        assert found.name == name


@pytest.mark.parametrize(
    "text",
    [
        "Qwen/Qwen3-8B-GGUF",
        "Qwen/Qwen3-8B-GPTQ-Int4",
        "qwen3-8b-int4",
        "meta-llama/Llama-3.1-8B-Instruct-FP8",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8",
        "zai-org/GLM-5.3",  # the catalogue has it in FP8
        "llama3.1:8b",  # a tag of a quantised file
        "unsloth/Llama-3.1-8B",
        "mistralai/Mistral-7B-v0.1",  # another vocabulary
        "zai-org/glm-4-9b-chat",  # of another year
        "glm-4-9b-chat",
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "meta-llama/Llama-3.1-9B",
        "gemma-31b",
        "qwen38b",
        "instruct",
        "meta",
        "/",
        "",
    ],
)
def test_another_size_version_format_or_organisation_is_no_sibling(text: str) -> None:
    assert find_sibling(text) is None


def test_no_two_entries_share_a_name() -> None:
    for entry in entries().values():
        assert find_sibling(entry.hub_id) == find_sibling(entry.name) == entry


def shared_siblings() -> list[tuple[str, str]]:
    """Real configs, and the entry that would be taken for each where it is not listed itself."""
    named = ((folder, folder.replace("--", "/")) for folder in shared_config_names())
    found = ((folder, hub_id, find_sibling(hub_id)) for folder, hub_id in named)
    return [(folder, entry.name) for folder, hub_id, entry in found if entry and entry.hub_id != hub_id]


@needs_configs
def test_a_sibling_has_the_weights_and_the_cache_of_the_real_config() -> None:
    assert len(shared_siblings()) >= 3
    for folder, name in shared_siblings():
        real, taken = load_model(str(CONFIGS / folder)), load_model(name)
        real = replace(real, dtype=taken.dtype)  # some were published in fp32
        assert weight_bytes(taken).total_bytes == pytest.approx(weight_bytes(real).total_bytes, rel=1e-3)
        assert kv_footprint(taken, Dtype.BF16).request_bytes(4096) == kv_footprint(real, Dtype.BF16).request_bytes(4096)


@given(st.text(max_size=40))
def test_any_text_is_an_entry_or_none(text: str) -> None:
    found = find_sibling(text)
    assert found is None or found in entries().values()
