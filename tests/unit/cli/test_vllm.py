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
from brim.cli.vllm import rescued_words, vllm_environment, vllm_words
from brim.errors import InvalidRequest
from brim.install import install_command

WORKER = ["--worker-cls", "brim.vllm.BrimWorker"]
SCHEDULER = ["--scheduler-cls", "brim.vllm.BrimScheduler"]


def test_every_flag_goes_through() -> None:
    words = ["serve", "some/model", "--port", "8001", "--max-num-seqs=16", "-tp", "2"]
    assert vllm_words(words) == [*words, *WORKER]


def test_help_of_vllm_itself_goes_through() -> None:
    assert make_parser().parse_args(["vllm", "serve", "--help=all"]).words == ["serve", "--help=all"]


@pytest.mark.parametrize(
    "written",
    [
        ["--gpu-memory-utilization", "0.92"],
        ["--gpu-memory-utilization=0.92"],
        ["--gpu_memory_utilization", "0.92"],
        ["--gpu-memory-util", "0.92"],
        ["--device-memory-utilization", "0.92"],
    ],
)
def test_a_utilization_that_was_written_is_a_cap(written: list[str]) -> None:
    """The command stays as it is: additional config that a file or dotted flags give is not replaced."""
    words = ["serve", "m", "--additional-config.brim.canary", "1GiB", *written]
    assert vllm_words(words) == [*words, *WORKER]
    assert vllm_environment(words)["BRIM_UTILIZATION_GIVEN"] == "1"
    assert "BRIM_UTILIZATION_GIVEN" not in vllm_environment(["serve", "m", "--device", "0"])


@pytest.fixture
def flags_file(tmp_path: Path) -> str:
    file = tmp_path / "flags.yaml"
    file.write_text("gpu_memory_utilization: 0.92\nworker-cls: mine.Worker\n")
    return str(file)


def test_flags_in_a_file_are_noticed(flags_file: str) -> None:
    assert "BRIM_UTILIZATION_GIVEN" in vllm_environment(["serve", "m", "--config", flags_file])
    with pytest.raises(InvalidRequest, match="worker-cls is given"):
        vllm_words(["serve", "m", "--config", flags_file])


def test_a_file_that_cannot_be_read_is_left_to_vllm(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    for file in (tmp_path / "absent.yaml", broken):
        words = ["serve", "m", "--config", str(file)]
        assert vllm_words(words) == [*words, *WORKER]


def test_another_worker_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="worker-cls is given"):
        vllm_words(["serve", "m", "--worker-cls=mine.Worker"])


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
    assert capsys.readouterr().err == f"brim vllm: vLLM is not installed; install it with {install_command('vllm')}\n"


@pytest.fixture
def became(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the process became, with a vLLM that has none of the names."""
    (tmp_path / "__init__.py").touch()
    words: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    monkeypatch.setattr(subprocess, "run", _first_start)
    monkeypatch.setattr(os, "execve", lambda program, given, environment: words.extend(given[4:]) or sys.exit())
    return words


def test_a_version_that_lacks_a_name_is_sized_by_two_starts(
    became: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first start measures; what vLLM becomes is stock, with that size."""
    with pytest.raises(SystemExit):
        run(["vllm", "serve", "m", "--port", "1"])
    assert became == ["serve", "m", "--port", "1", "--kv-cache-memory-bytes", "12345"]
    assert "is sized by two starts" in capsys.readouterr().err


def test_a_version_that_lacks_a_name_starts_as_it_was_asked_for_where_nothing_is_sized(
    became: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_sized(words: list[str], check: bool) -> SimpleNamespace:
        Path(words[4]).write_text('{"kv_cache_memory_bytes": null, "why": "its size is given"}')
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", not_sized)
    words = ["serve", "m", "--kv-cache-memory-bytes=777"]
    with pytest.raises(SystemExit):
        run(["vllm", *words])
    assert became == words
    assert capsys.readouterr().err.endswith("stock vLLM as it was asked for: its size is given\n")


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


def test_a_config_that_is_no_json_is_named(became: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["vllm", "serve", "m", "--additional-config", "{"]) == 2
    assert "is no JSON object" in capsys.readouterr().err


def test_a_dotted_flag_replaces_the_json_as_in_vllm(
    became: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So what is switched off there is on."""
    monkeypatch.setattr("brim.vllm.names.missing_names", lambda *given: ())
    words = ["serve", "m", "--additional-config", '{"brim": {"enabled": false}}', "--additional-config.other", "1"]
    with pytest.raises(SystemExit):
        run(["vllm", *words])
    assert became == [*words, *WORKER, *SCHEDULER]


def test_steps_are_rescued_unless_the_scheduler_is_another_or_a_version_lacks_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = ["serve", "m", "--scheduler-cls", "mine.Scheduler"]
    assert rescued_words(["serve", "m"], tmp_path) == ["serve", "m"]
    assert "this vLLM lacks v1.core.sched.scheduler.Scheduler.schedule" in capsys.readouterr().err
    monkeypatch.setattr("brim.vllm.names.missing_names", lambda *given: ())
    assert rescued_words(["serve", "m"], tmp_path) == ["serve", "m", *SCHEDULER]
    assert rescued_words(own, tmp_path) == own
    assert "--scheduler-cls is given" in capsys.readouterr().err


def _first_start(words: list[str], check: bool) -> SimpleNamespace:
    assert words[3] == "brim.vllm.stock.two_starts"
    assert words[5:] == ["m", "--port", "1"]
    Path(words[4]).write_text('{"kv_cache_memory_bytes": 12345}')
    return SimpleNamespace(returncode=0)
