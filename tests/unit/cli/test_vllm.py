"""`brim vllm serve`: the command that vLLM gets."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from brim.cli.main import make_parser, run
from brim.cli.vllm import vllm_words
from brim.errors import InvalidRequest

WORKER = ["--worker-cls", "brim.vllm.BrimWorker"]


def test_every_flag_goes_through() -> None:
    words = ["serve", "some/model", "--port", "8001", "--max-num-seqs=16", "-tp", "2"]
    assert vllm_words(words) == [*words, *WORKER]


def test_help_of_vllm_itself_goes_through() -> None:
    assert make_parser().parse_args(["vllm", "serve", "--help=all"]).words == ["serve", "--help=all"]


@pytest.mark.parametrize("written", [["--gpu-memory-utilization", "0.92"], ["--gpu-memory-utilization=0.92"]])
def test_a_utilization_that_was_written_is_a_cap(written: list[str]) -> None:
    config = '{"brim": {"canary": "1GiB"}, "other": 1}'
    found = vllm_words(["serve", "m", "--additional-config", config, *written])
    assert found[:-2] == ["serve", "m", *written, *WORKER]
    assert json.loads(found[-1]) == {"brim": {"canary": "1GiB", "utilization_given": True}, "other": 1}


def test_another_worker_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="worker-cls is given"):
        vllm_words(["serve", "m", "--worker-cls=mine.Worker"])


def test_a_config_that_is_no_json_is_named() -> None:
    with pytest.raises(InvalidRequest, match="is no JSON object"):
        vllm_words(["serve", "m", "--gpu-memory-utilization", "0.9", "--additional-config", "{"])


def test_another_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["vllm", "bench"]) == 2
    assert "'bench' is no command of brim vllm" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(["vllm", "--help"])
    assert "brim vllm serve MODEL" in capsys.readouterr().out


def test_without_vllm_one_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(["vllm", "serve", "m"]) == 2
    assert capsys.readouterr().err == ("brim vllm: vLLM is not installed; install it with pip install 'brim[vllm]'\n")


@pytest.fixture
def became(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the process became, with a vLLM that has none of the names."""
    (tmp_path / "__init__.py").touch()
    words: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    monkeypatch.setattr(subprocess, "run", _first_start)
    monkeypatch.setattr(os, "execv", lambda program, given: words.extend(given[4:]) or sys.exit())
    return words


def test_a_version_that_lacks_a_name_is_sized_by_two_starts(
    became: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first start measures; what vLLM becomes is stock, with that size."""
    with pytest.raises(SystemExit):
        run(["vllm", "serve", "m", "--port", "1"])
    assert became == ["serve", "m", "--port", "1", "--kv-cache-memory-bytes", "12345"]
    assert "is sized by two starts" in capsys.readouterr().err


def test_a_version_that_lacks_a_name_keeps_a_size_that_is_given(
    became: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "m", "--kv-cache-memory-bytes=777"]
    with pytest.raises(SystemExit):
        run(["vllm", *words])
    assert became == words
    assert "not validated" in capsys.readouterr().err


@pytest.mark.parametrize("switched_off", [True, False])
def test_off_is_the_command_of_stock_vllm(
    became: list[str], monkeypatch: pytest.MonkeyPatch, switched_off: bool
) -> None:
    words = ["serve", "m", "--additional-config", json.dumps({"brim": {"enabled": switched_off}})]
    if switched_off:
        monkeypatch.setenv("BRIM", "off")
    with pytest.raises(SystemExit):
        run(["vllm", *words])
    assert became == words


def test_a_setting_that_is_wrong_is_named_before_anything_starts(
    became: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["vllm", "serve", "m", "--additional-config", '{"brim": {"canary": "much"}}']) == 2
    assert "additional_config.brim.canary" in capsys.readouterr().err
    assert became == []


def _first_start(words: list[str], check: bool) -> SimpleNamespace:
    assert words[3] == "brim.vllm.stock.two_starts"
    assert words[5:] == ["m", "--port", "1"]
    Path(words[4]).write_text('{"kv_cache_memory_bytes": 12345}')
    return SimpleNamespace(returncode=0)
