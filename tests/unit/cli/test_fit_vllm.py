"""`brim fit --engine vllm`: what vLLM is started with, and the flag that is printed."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from brim.cli.fit_vllm import llm_arguments
from brim.cli.main import make_parser, run
from brim.errors import InvalidRequest

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


def test_what_vllm_has_own_flags_for_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="kv-dtype"):
        llm_arguments(make_parser().parse_args([*WORDS, "--kv-dtype", "fp8"]))


def test_the_flag_is_printed_with_the_settings_it_was_proven_under(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fitted(words: list[str], env: dict[str, str], **_: object) -> SimpleNamespace:
        assert "BRIM" not in env
        Path(words[4]).write_text('{"kv_tokens": 4096, "kv_cache_memory_bytes": 12345, "growing_segments": true}')
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setenv("BRIM", "off")
    monkeypatch.setattr(subprocess, "run", fitted)
    assert run(WORDS) == 0
    assert capsys.readouterr().out.splitlines() == [
        "4,096 KV tokens proven inside vLLM (12.1 KiB)",
        "PYTORCH_ALLOC_CONF=expandable_segments:True vllm serve some/model --dtype bfloat16 --max-model-len 8192 "
        "--max-num-batched-tokens 2048 --max-num-seqs 16 --tensor-parallel-size 1 --kv-cache-memory-bytes 12345",
    ]
