"""Placement on the command line: flags of engines that mean the same, and what a person sees."""

from __future__ import annotations

import json
from typing import Any

import pytest

import brim
from brim.cli.main import run


def planned(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, Any]:
    run(["plan", *words.split(), "--json"])
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (
            "qwen3-30b-a3b --gpu h100 --engine vllm --tensor-parallel-size 2 --pipeline-parallel-size 2 "
            "--data-parallel-size 2 --enable-expert-parallel",
            {"engine": "vllm", "tp": 2, "pp": 2, "dp": 2, "ep": True},
        ),
        (
            "qwen3-30b-a3b --gpu h100 --engine sglang --tp-size 2 --pp-size 2 -dp 2 --expert-parallel",
            {"engine": "sglang", "tp": 2, "pp": 2, "dp": 2, "ep": True},
        ),
        (
            "qwen3-30b-a3b --gpu h100 --engine llama.cpp -ngl 40 --n-cpu-moe 20 --max-len 8k",
            {"engine": "llama.cpp", "gpu_layers": 40, "cpu_moe": 20, "max_len": 8192},
        ),
        (
            "qwen3-30b-a3b --gpu h200 --engine vllm --max-lora-rank 16 --max-loras 2 --host-kv 32GiB",
            {"engine": "vllm", "lora_rank": 16, "loras": 2, "host_kv": 32 << 30},
        ),
    ],
)
def test_flags_of_engines_are_understood(capsys: pytest.CaptureFixture[str], words: str, same: dict[str, Any]) -> None:
    gpu = words.split()[2]
    assert planned(capsys, words) == brim.plan("qwen3-30b-a3b", gpu=gpu, **same).to_json()


def test_stages_and_replicas_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "llama-3.3-70b", "--gpu", "8xh100", "--pp", "2", "--dp", "2", "--max-len", "8k"]) == 0
    text = capsys.readouterr().out
    assert "8 × NVIDIA H100 80GB SXM" in text
    assert "on each of 2 replicas: " in text
    assert "stage 0: layers 0 to 39 on 4 × NVIDIA H100" in text
    assert "stage 1: layers 40 to 79 on 4 × NVIDIA H100" in text


def test_host_memory_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan qwen3-30b-a3b --gpu rtx-4090 --engine llama.cpp --cpu-moe auto --max-len 8k"
    assert run(words.split()) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "host memory: " in text
    assert "experts of layers 0 to" in text


def test_which_gpus_would_do_is_asked_without_a_placement(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "llama-3.1-8b", "--concurrency", "8", "--max-len", "8k", "--pp", "2"]) == 2
    assert "--pp needs one GPU" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--pp two", "--dp 0", "--host-kv lots", "--loras many --lora-rank 8"])
def test_what_is_no_number_is_refused(capsys: pytest.CaptureFixture[str], words: str) -> None:
    try:
        code = run(["plan", "llama-3.1-8b", "--gpu", "h200", *words.split()])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert words.split()[0].removeprefix("--") in capsys.readouterr().err
