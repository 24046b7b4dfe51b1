"""The flags of a command of vLLM, as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.vllm.command import is_written, written_flags


def test_flags_and_what_follows_them() -> None:
    words = [
        "serve",
        "m",
        "--max_model_len",
        "512",
        "--port=8001",
        "--enforce-eager",
        "--additional-config.brim.keep_free",
    ]
    assert written_flags(words) == {
        "--max-model-len": "512",
        "--port": "8001",
        "--enforce-eager": "--additional-config.brim.keep_free",
        "--additional-config.brim.keep_free": "",
    }


def test_the_command_is_stronger_than_its_file(tmp_path: Path) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text("port: 1\ndisable-log-stats: false\nadditional_config: {brim: {enabled: false}}\n")
    assert written_flags(["serve", "m", "--config", str(file), "--port", "2"]) == {
        "--port": "2",
        "--additional-config": '{"brim": {"enabled": false}}',
        "--config": str(file),
    }


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--gpu-memory-utilization", True),
        ("--gpu_memory_utilization=0.9", True),
        ("--gpu-mem", True),
        ("--gpu", False),
        ("--gpu-memory-utilization-of-another", False),
        ("gpu-memory-utilization", False),
    ],
)
def test_a_flag_may_be_abbreviated(word: str, said: bool) -> None:
    assert is_written(("--other-flag", "--gpu-memory-utilization"), ["serve", "m", word]) is said
