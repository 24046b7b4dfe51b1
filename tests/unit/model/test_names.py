"""Names as people type and paste them, and what becomes of them without a network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.errors import BrimError, SourceNotFound
from brim.model import hub
from brim.model.names import NameKind, WrittenName, parse_name
from brim.model.source import load_config, load_model
from brim.model.weights import weight_bytes

HUB, TAGGED, PLAIN = NameKind.HUB, NameKind.TAGGED, NameKind.PLAIN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("qwen3-8b", WrittenName(PLAIN, "qwen3-8b")),
        ("Qwen/Qwen3-8B", WrittenName(HUB, "Qwen/Qwen3-8B")),
        ("hf.co/Qwen/Qwen3-8B", WrittenName(HUB, "Qwen/Qwen3-8B")),
        ("huggingface.co/Qwen/Qwen3-8B/", WrittenName(HUB, "Qwen/Qwen3-8B")),
        ("https://huggingface.co/Qwen/Qwen3-8B", WrittenName(HUB, "Qwen/Qwen3-8B")),
        ("https://huggingface.co/Qwen/Qwen3-8B/tree/main", WrittenName(HUB, "Qwen/Qwen3-8B")),
        ("https://huggingface.co/a/b?show=x#files", WrittenName(HUB, "a/b")),
        ("https://huggingface.co/a/b/blob/main/x/y-Q4_0.gguf", WrittenName(HUB, "a/b", file="x/y-Q4_0.gguf")),
        ("https://huggingface.co/a/b/resolve/main/m.gguf?download=true", WrittenName(HUB, "a/b", file="m.gguf")),
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", WrittenName(HUB, "unsloth/Qwen3-8B-GGUF", "Q4_K_M")),
        ("hf.co/unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", WrittenName(HUB, "unsloth/Qwen3-8B-GGUF", "UD-Q4_K_XL")),
        ("qwen3:8b", WrittenName(TAGGED, "qwen3", "8b")),
        ("library/qwen3:8b", WrittenName(TAGGED, "qwen3", "8b")),
        ("https://ollama.com/library/llama3.1:8b", WrittenName(TAGGED, "llama3.1", "8b")),
        ("ollama.com/library/llama3.1", WrittenName(TAGGED, "llama3.1", "latest")),
    ],
)
def test_names_are_taken_apart(text: str, expected: WrittenName) -> None:
    assert parse_name(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("https://example.com/a/b", "is an address of example.com, and only"),
        ("https://huggingface.co/datasets/a/b", "is not the address of a model"),
        ("https://huggingface.co/a", "is not the address of a model"),
        ("https://huggingface.co/a/b/discussions/1", "'discussions' of an address is not read"),
        ("https://huggingface.co/a/b/tree/dev", "names the revision 'dev', and only main is read"),
        ("a/b:", "reads as 'a/b' with the tag ''"),
        ("a:b:c", "reads as 'a' with the tag 'b:c'"),
    ],
)
def test_what_is_no_name_is_said_with_how_to_write_it(text: str, message: str) -> None:
    with pytest.raises(SourceNotFound, match=message):
        parse_name(text)


@given(st.text(max_size=40))
def test_any_text_is_taken_apart_or_refused(text: str) -> None:
    for one in (text, f"{text}:q4_0", f"hf.co/{text}", f"https://{text}"):
        try:
            assert parse_name(one).name
        except BrimError:
            continue
        except AssertionError:
            assert not one.strip()


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize(
    ("text", "name", "weights"),
    [
        ("qwen3:8b", "qwen3-8b", "q4_k_m"),
        ("qwen3:8b-q8_0", "qwen3-8b", "q8_0"),
        ("qwen3:30b", "qwen3-30b-a3b", "q4_k_m"),
        ("qwen3:30b-a3b", "qwen3-30b-a3b", "q4_k_m"),
        ("llama3.1:8b-instruct-q4_K_M", "llama-3.1-8b", "q4_k_m"),
        ("llama3.1:8b-instruct-fp16", "llama-3.1-8b", "fp16"),
        ("llama3.2:3b", "llama-3.2-3b", "q4_k_m"),
        ("llama3.3:70b", "llama-3.3-70b", "q4_k_m"),
        ("gemma3:4b-it-q8_0", "gemma-3-4b", "q8_0"),
        ("gemma2:9b", "gemma-2-9b", "q4_k_m"),
        ("phi4:14b", "phi-4", "q4_k_m"),
        ("mistral:7b", "mistral-7b", "q4_k_m"),
        ("mixtral:8x7b", "mixtral-8x7b", "q4_k_m"),
        ("qwen2.5vl:7b", "qwen2.5-vl-7b", "q4_k_m"),
        ("llama4:scout", "llama-4-scout", "q4_k_m"),
        ("gpt-oss:20b", "gpt-oss-20b", "mxfp4"),
        ("qwen3-8b:IQ4_XS", "qwen3-8b", "iq4_xs"),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q5_K_M", "llama-3.1-8b", "q5_k_m"),
        ("hf.co/bartowski/Qwen_Qwen3-8B-GGUF:Q6_K", "qwen3-8b", "q6_k"),
        ("https://huggingface.co/unsloth/Qwen3-8B-GGUF/blob/main/Qwen3-8B-Q4_0.gguf", "qwen3-8b", "q4_0"),
    ],
)
def test_quants_and_ollama_s_names_without_a_network(text: str, name: str, weights: str) -> None:
    spec = load_model(text)
    assert spec.name == name
    assert weight_bytes(spec).detail.startswith(f"{weights}, ")
    assert any("catalogue" in warning or "planned as a GGUF" in warning for warning in spec.warnings)
    assert load_config(text)[0] == name
    plan = brim.plan(text, gpu="8xh200")
    weights_item = next(item for item in plan.items if item.name == "weights")
    assert weights in ("mxfp4", "fp16") or str(weights_item.source) == "formula"  # never called exact


def test_a_quant_of_a_repository_is_what_llama_server_is_given() -> None:
    plan = brim.plan("unsloth/Qwen3-8B-GGUF:q4_k_m", gpu="rtx-4090")
    assert plan.engine == "llama.cpp"
    assert plan.command[:3] == ("llama-server", "--hf-repo", "unsloth/Qwen3-8B-GGUF:q4_k_m")
    ollama = brim.plan("qwen3:8b", gpu="rtx-4090")
    assert ollama.command[:3] == ("llama-server", "--hf-repo", "Qwen/Qwen3-8B:Q4_K_M")
    assert any("put a GGUF repository or file of Qwen/Qwen3-8B in its place" in one for one in ollama.warnings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deepseek-r1:8b", "reads as Ollama's model deepseek-r1 with the tag 8b, and the catalogue has none like it"),
        ("qwen3:latest", "did you mean qwen3-"),
        ("nobody/Nothing-GGUF:Q4_K_M", "not in the local hub cache and the hub cannot be reached"),
        ("unsloth/Qwen3-8B-GGUF", "is a GGUF repository.*such as unsloth/Qwen3-8B-GGUF:Q4_K_M"),
        ("unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", "'UD-Q4_K_XL' is not a format whose size is known without its file"),
        ("./nothing.gguf", "no such file or directory"),
        ("nothing.gguf", "no such file or directory"),
    ],
)
def test_what_cannot_be_planned_says_what_was_read(text: str, message: str) -> None:
    with pytest.raises(SourceNotFound, match=message):
        load_model(text)
