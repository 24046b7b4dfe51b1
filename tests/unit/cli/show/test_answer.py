"""The answer of a plan: verdict and command first, commands that can be pasted, advice that can be typed."""

from __future__ import annotations

import json
import shlex

import pytest

import brim
from brim.cli.main import run
from brim.cli.show.answer import command_lines
from brim.planning.engines import ENGINES


@pytest.mark.parametrize("engine", sorted(set(ENGINES) - {"transformers"}))
def test_a_broken_command_is_the_same_command(engine: str) -> None:
    [command] = brim.plan("qwen3-8b", gpu="h100", engine=engine, max_len=8192).commands
    lines = command_lines(command)
    assert lines.count("\n") >= 3
    assert shlex.split(lines.replace("\\\n", " "))[-len(command.args) :] == list(command.args)
    assert lines.partition(command.args[0])[0] == command.shell.partition(command.args[0])[0]  # files, where it has any


def test_verdict_and_command_come_before_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    run(["plan", "qwen3-8b", "--gpu", "h100", "--engine", "vllm"])
    said = capsys.readouterr().out
    places = [said.index(word) for word in ("fits", "with vllm 0.26", "vllm serve Qwen/Qwen3-8B", "█", "item ")]
    assert places == sorted(places)
    assert "at 512 tokens each: 256 requests, 2,048 tokens each:" in said
    assert said.index("item ") < said.index("--kv-dtype fp8")  # advice comes last


def test_the_command_of_what_does_not_fit_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run(["plan", "qwen3-8b", "--gpu", "rtx-4090", "--max-len", "32k", "--concurrency", "8", "--engine", "vllm"])
    assert "with vllm 0.26, for what fits: 1 request of 32,768 tokens" in capsys.readouterr().out
    run(["plan", "qwen3-32b", "--gpu", "rtx-4090", "--engine", "vllm"])
    said = capsys.readouterr().out
    assert "vllm serve" not in said
    assert "qwen3-32b on GeForce RTX 4090, vllm 0.26: does not fit" in said


def test_brim_is_told_to_serve() -> None:
    plan = brim.plan("qwen3-8b", gpu="h100", engine="brim")
    assert plan.command[:3] == ("brim", "serve", "Qwen/Qwen3-8B")
    assert plan.engine_version == brim.__version__


def test_advice_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan qwen3-8b --gpu rtx-4090 --max-len 32k --concurrency 8 --json".split()  # noqa: SIM905
    run(words)
    found = json.loads(capsys.readouterr().out)
    assert {one["knob"] for one in found["advice"]} >= {"tp", "gpu", "max_len", "concurrency"}
    for one in found["advice"]:
        flags = one["flags"]
        kept = words if flags[0] != "--gpu" else [word for word in words if word not in ("--gpu", "rtx-4090")]
        code = run([*kept, *flags])
        assert (code == 0) == one["fits_after"], one
        capsys.readouterr()


def test_how_many_requests_of_usual_lengths_run_at_once() -> None:
    plan = brim.plan("qwen3-8b", gpu="h100", max_len=8192)
    assert [one.tokens for one in plan.usual_lengths] == [512, 2048]
    for one in plan.usual_lengths:
        asked = brim.plan("qwen3-8b", gpu="h100", max_len=8192, mean_len=one.tokens, max_seqs=plan.max_seqs)
        assert one.requests == asked.mean_requests
    assert brim.plan("qwen3-32b", gpu="rtx-4090").usual_lengths == ()
