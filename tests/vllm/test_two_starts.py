"""The first of two starts in real vLLM: its parser, its engine and its workers' memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.starts import MODEL

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="make test-vllm installs it")

_SMALL = ["--max_model_len", "256", "--max-num-seqs", "4", "--max-num-batched-tokens", "512", "-O0", "--enforce-eager"]
_BUDGET = 6 << 30
_SECONDS = 300


def measured(file: Path, *words: str) -> dict[str, Any]:
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, "-P", "-m", "brim.vllm.stock.two_starts", str(file), *words]
    ended = subprocess.run(
        command, env={**os.environ, **own}, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_a_size_is_measured_with_settings_from_a_file_of_flags(tmp_path: Path) -> None:
    flags = tmp_path / "flags.yaml"
    flags.write_text(f"additional-config: {{brim: {{budget: {_BUDGET}, keep_free: 1GiB, memory_fraction: 0.5}}}}\n")
    found = measured(tmp_path / "size.json", str(MODEL), "--port", "8001", *_SMALL, "--config", str(flags))
    assert found["why"] == ""
    assert _BUDGET // 8 < found["kv_cache_memory_bytes"] < (_BUDGET - (1 << 30)) // 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--runner", "pooling", "--convert", "embed"], "a pooling model"),
        (["--kv-cache-memory", "1000000"], "size is given"),
        (["--additional-config.brim.enabled", "false"], "switched off"),
    ],
)
def test_where_nothing_is_to_be_sized_nothing_is_measured(tmp_path: Path, words: list[str], why: str) -> None:
    found = measured(tmp_path / "size.json", "--port", "8001", str(MODEL), *_SMALL, *words)
    assert found["kv_cache_memory_bytes"] is None
    assert why in found["why"]
