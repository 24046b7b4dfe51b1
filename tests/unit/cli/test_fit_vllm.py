"""`brim fit --engine vllm`: what vLLM is started with, and the flag that is printed."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brim.cli.fit_vllm import PASSED_ON, advice, llm_arguments
from brim.cli.main import make_parser, run
from brim.errors import InvalidRequest
from brim.records.lease import SizeWish
from brim.units import GIB
from brim.vllm.settings import read_settings
from brim.vllm.stock.advice import check_device

WORDS = [
    "fit",
    "some/model",
    "--engine",
    "vllm",
    "--max-len",
    "8k",
    "--max-seqs",
    "16",
    "--dtype",
    "bf16",
    "--no-store",
]


def test_options_become_arguments_of_vllm() -> None:
    assert llm_arguments(make_parser().parse_args(WORDS)) == {
        "model": "some/model",
        "load_format": "auto",
        "dtype": "bfloat16",
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "tensor_parallel_size": 1,
        "max_model_len": 8192,
        "additional_config": {
            "brim": {"canary": "256MiB", "memory_fraction": 1.0, "score_in_pieces": False, "store": False}
        },
    }


def arguments(*words: str) -> dict[str, Any]:
    return llm_arguments(make_parser("fit").parse_args([*WORDS, *words]))


def settings(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = arguments(*words)["additional_config"]["brim"]
    return found


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--kv-dtype", "fp8"], "--kv-cache-dtype"),
        (["--kv-tokens", "5000"], "--kv-cache-memory-bytes"),
        (["--image-pixels", "1000x1000"], "--mm-processor-kwargs"),
        (["--draft", "small"], "--speculative-config"),
        (["--compile"], "vLLM compiles by itself"),
        (["--host-memory", "1GiB"], "leave it out"),
        (["--encoder", "process"], "leave it out"),
        (["--scaling", "off"], "leave it out"),
    ],
)
def test_what_vllm_would_not_get_is_refused_with_the_remedy(words: list[str], remedy: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{words[0].lstrip('-')} is not passed on to vLLM; .*{remedy}"):
        arguments(*words)


def test_every_option_is_passed_on_or_refused() -> None:
    options = vars(make_parser("fit").parse_args(["fit"]))
    assert set(options) >= PASSED_ON
    for name in set(options) - PASSED_ON:
        changed = make_parser("fit").parse_args(WORDS)
        setattr(changed, name, "given")
        with pytest.raises(InvalidRequest, match=name.replace("_", "-")):
            llm_arguments(changed)


def test_neighbours_are_settings_of_the_worker() -> None:
    found = settings("--share", "12GiB", "--expect-neighbours", "embedder,tower", "--wait-neighbours", "30s")
    assert found["share"] == f"{12 * GIB}B"
    assert found["expect_neighbours"] == ["embedder", "tower"]
    assert found["wait_neighbours"] == 30.0
    assert read_settings({"brim": found}, {}).share == SizeWish(bytes=12 * GIB)
    assert settings("--share", "50%", "--expect-neighbours", "2") == settings() | {"share": 0.5, "expect_neighbours": 2}


def test_a_device_is_a_gpu_of_vllm_or_a_budget_of_the_worker() -> None:
    assert arguments("--device", "cuda:1")["device_ids"] == [1]
    assert settings("--device", "cpu:lab:4GiB") == settings() | {"budget": 4 * GIB, "budget_name": "cpu:lab"}
    with pytest.raises(InvalidRequest, match="both give a budget"):
        arguments("--device", "cpu:4GiB", "--memory", "1GiB")
    with pytest.raises(InvalidRequest, match="CUDA_VISIBLE_DEVICES"):
        arguments("--device", "cuda:1", "--tp", "2")


def test_without_graphs_vllm_is_eager_and_the_flag_says_so() -> None:
    given = arguments("--no-graphs", "--device", "cuda:1")
    report = {"kv_tokens": 1, "kv_cache_memory_bytes": 2, "growing_segments": False}
    assert advice(given, report).endswith(" --device-ids 1 --enforce-eager --kv-cache-memory-bytes 2")


@pytest.mark.parametrize(
    ("given", "wanted", "found", "words"),
    [
        ({}, "cuda", "cpu", "built for cpu"),
        ({"budget": "1GiB"}, "auto", "cuda", "memory is a budget for the CPU only"),
        ({"budget": "1GiB", "share": 0.5}, "auto", "cpu", "share: nobody shares this budget"),
    ],
)
def test_what_has_no_effect_on_vllm_s_device_is_refused(
    given: dict[str, Any], wanted: str, found: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        check_device(given, wanted, found)
    check_device({}, "auto", found)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the process that starts vLLM write a report."""

    def reporting(report: str) -> None:
        def fitted(words: list[str], env: dict[str, str], **_: object) -> SimpleNamespace:
            assert "BRIM" not in env
            Path(words[4]).write_text(report)
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr(subprocess, "run", fitted)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setenv("BRIM", "off")
    return reporting


def test_the_flag_is_printed_with_the_settings_it_was_proven_under(
    starts: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    starts('{"kv_tokens": 4096, "kv_cache_memory_bytes": 12345, "growing_segments": true}')
    assert run(WORDS) == 0
    assert capsys.readouterr().out.splitlines() == [
        "4,096 KV tokens proven inside vLLM (12.1 KiB)",
        "PYTORCH_ALLOC_CONF=expandable_segments:True vllm serve some/model --dtype bfloat16 --max-model-len 8192 "
        "--max-num-batched-tokens 2048 --max-num-seqs 16 --tensor-parallel-size 1 --kv-cache-memory-bytes 12345",
    ]


def test_a_model_that_is_not_sized_is_an_error_in_words(
    starts: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    starts("null")
    assert run(WORDS) == 2
    assert capsys.readouterr().err == (
        "brim fit: nothing was sized: this is stock vLLM, for the reason in its log above\n"
    )
