"""Brim's gauges are a logger of vLLM's statistics only where Brim's worker is asked for."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from brim.vllm.plugin import announce_gauges, wants_gauges

BY_HAND = ["vllm", "serve", "m", "--worker-cls", "brim.vllm.BrimWorker"]


def loggers() -> list[str]:
    return [one.value for one in entry_points(group="vllm.stat_logger_plugins") if one.value.startswith("brim.")]


def announced(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> list[str]:
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = loggers()
    announce_gauges()
    announce_gauges()
    return loggers()[len(before) :]


def test_with_brim_s_worker_the_gauges_are_a_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    assert announced(monkeypatch, BY_HAND) == ["brim.vllm.metrics:BrimGauges"]


def test_stock_vllm_gets_no_logger(monkeypatch: pytest.MonkeyPatch) -> None:
    assert announced(monkeypatch, ["vllm", "serve", "m"]) == []


def test_a_worker_in_the_file_of_flags_counts(tmp_path: Path) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text("worker-cls: brim.vllm.BrimWorker\n")
    assert wants_gauges(["vllm", "serve", "m", "--config", str(file)], {})


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ([*BY_HAND, "--disable-log-stats"], {}),
        (BY_HAND, {"BRIM": "off"}),
        (["vllm", "serve", "m", "--worker-cls", "mine.Worker"], {}),
    ],
)
def test_what_is_switched_off_stays_off(words: list[str], environment: dict[str, str]) -> None:
    assert wants_gauges(BY_HAND, {})
    assert not wants_gauges(words, environment)
