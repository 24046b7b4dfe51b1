"""`brim plan --verify`: what vLLM is started with, what is printed, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brim.cli.main import run
from brim.errors import DeviceError
from brim.install import install_command
from brim.planning.devices import find_device

WORDS = [
    "plan",
    "qwen3-30b-a3b",
    "--gpu",
    "h200",
    "--engine",
    "vllm",
    "--verify",
    "--max-len",
    "8k",
    "--max-seqs",
    "256",
]
PROVEN = 84_053_852_160


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], dict[str, Any]]:
    """A machine with an H200 and vLLM, whose process proves a size and writes down what it was started with."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr("brim.cli.plan_verify.this_machine", lambda: (find_device("h200"),))

    def proving(size: int) -> dict[str, Any]:
        started: dict[str, Any] = {}

        def fitted(words: list[str], **_: object) -> SimpleNamespace:
            started.update(json.loads(words[5]), device=words[6])
            report = {"kv_tokens": size // 98_304, "kv_cache_memory_bytes": size, "growing_segments": True}
            Path(words[4]).write_text(json.dumps(report))
            return SimpleNamespace(returncode=0)

        monkeypatch.setattr(subprocess, "run", fitted)
        return started

    return proving


def test_the_plan_s_settings_are_verified(
    machine: Callable[[int], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    started = machine(PROVEN)
    assert run([*WORDS, "--batch-tokens", "8k", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    planned = int(shown["flags"][1])
    assert shown["verified"] == {
        "kv_bytes": PROVEN,
        "kv_tokens": 855_040,
        "planned_bytes": planned,
        "difference": PROVEN - planned,
    }
    assert started == {
        "model": "Qwen/Qwen3-30B-A3B",
        "max_model_len": 8192,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "long_prefill_token_threshold": 1520,
        "load_format": "auto",
        "additional_config": {"brim": {"canary": f"{256 << 20}B", "score_in_pieces": False}},
        "device": "cuda",
    }


def test_both_sizes_are_printed_behind_the_plan(
    machine: Callable[[int], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    machine(PROVEN)
    assert run(WORDS) == 0
    *_, planned, proven, verdict = capsys.readouterr().out.strip().splitlines()
    assert planned.startswith("planned ")
    assert proven.startswith("proven  84,053,852,160 bytes inside vLLM")
    assert verdict.endswith("below what was proven")


def test_a_plan_that_is_too_large_is_said_and_is_a_failure(
    machine: Callable[[int], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    machine(80_000_000_000)
    assert run(WORDS) == 1
    assert "ABOVE what was proven" in capsys.readouterr().out


def test_random_weights_are_enough(machine: Callable[[int], dict[str, Any]]) -> None:
    started = machine(PROVEN)
    assert run([*WORDS, "--load-format", "dummy"]) == 0
    assert (started["load_format"], started["skip_tokenizer_init"]) == ("dummy", True)


def test_objects_and_switches_reach_vllm(machine: Callable[[int], dict[str, Any]]) -> None:
    started = machine(200_000_000_000)
    words = ["plan", "qwen2.5-vl-7b", "--gpu", "h200", "--engine", "vllm", "--verify", "--max-len", "8k"]
    assert run([*words, "--images-per-prompt", "0", "--no-graphs", "--kv-dtype", "fp8"]) == 0
    assert started["limit_mm_per_prompt"] == {"image": 0}
    assert started["enforce_eager"] is True
    assert started["kv_cache_dtype"] == "fp8_e4m3"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["plan", "llama-3.1-8b", "--gpu", "h200", "--verify"], "plan with --engine vllm"),
        (["plan", "llama-3.1-8b", "--gpu", "h200", "--engine", "sglang", "--verify"], "plan with --engine vllm"),
        (["plan", "llama-3.1-8b", "--gpu", "rtx-4090", "--engine", "vllm", "--verify"], "leave out --gpu"),
        (["plan", "llama-3.1-8b", "--gpu", "2xh200", "--engine", "vllm", "--verify"], "lower --tp"),
        (["plan", "llama-3.1-8b", "--compare", "--engine", "vllm", "--verify"], "give one model and one --gpu"),
        (["plan", "llama-3.1-405b", "--gpu", "h200", "--engine", "vllm", "--verify"], "without --verify"),
        (["plan", "llama-3.1-8b", "--gpu", "h200", "--load-format", "dummy"], "leave it out"),
    ],
)
def test_what_cannot_be_verified_is_refused_with_the_remedy(
    words: list[str], remedy: str, machine: Callable[[int], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    machine(PROVEN)
    assert run(words) == 2
    assert remedy in capsys.readouterr().err


def test_without_vllm_it_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(WORDS) == 2
    assert install_command("vllm") in capsys.readouterr().err


def test_without_a_gpu_it_is_refused(
    machine: Callable[[int], dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise DeviceError("this process sees no GPU; name a GPU, or give a size such as 24GiB")

    machine(PROVEN)
    monkeypatch.setattr("brim.cli.plan_verify.this_machine", none)
    assert run(WORDS) != 0
    assert "--verify runs on the GPU of the plan" in capsys.readouterr().err


def test_a_driver_may_report_a_little_more(
    machine: Callable[[int], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(PROVEN)
    device = find_device("h200")
    monkeypatch.setattr(
        "brim.cli.plan_verify.this_machine", lambda: (replace(device, total_bytes=device.total_bytes + (1 << 30)),)
    )
    assert run(WORDS) == 0
