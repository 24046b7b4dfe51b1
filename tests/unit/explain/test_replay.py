"""The last steps of an incident on the meta device: the refused one takes more than what ran, and its peak is named."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch")

from brim.cli.main import run
from brim.explain.explanation import explain
from tests.unit.explain.incidents import FOLDER

SCHEDULED = (
    "ERROR [dump_input.py] Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs=[], "
    "num_scheduled_tokens={cmpl-1: 500, cmpl-2: 1, cmpl-3: 11}, total_num_scheduled_tokens=512, "
    "scheduled_spec_decode_tokens={}, scheduled_encoder_inputs={})\n"
    "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of "
    "139.80 GiB of which 0.10 GiB is free.\n"
)


def test_the_refused_step_beside_the_largest_that_ran() -> None:
    found = explain([FOLDER / "made-long-prompts-1.brimrec.gz"], replayed=True)
    refused, ran = found.replays
    assert (refused.step.refused, refused.step.tokens) == (True, 384)  # the whole step, not a part of its rescue
    assert (ran.step.refused, ran.step.tokens) == (False, 64)
    assert refused.step.free_bytes is not None
    assert ran.trace.peak_bytes < refused.step.free_bytes < refused.trace.peak_bytes
    assert "mlp" in refused.trace.at_module
    largest = refused.largest
    assert largest is not None
    assert 384 in largest.shape
    assert found.unknown == explain([FOLDER / "made-long-prompts-1.brimrec.gz"]).unknown


def test_a_step_that_took_the_process_with_it_or_none_was_refused() -> None:
    (ran,) = explain([FOLDER / "made-killed-1.brimrec.gz"], replayed=True).replays
    assert not ran.step.refused


def test_the_step_that_vllm_lists_when_it_fails(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --max-model-len 8192\n" + SCHEDULED)
    (found,) = explain([log], replayed=True).replays
    assert (found.step.tokens, found.step.logit_rows) == (512, 3)
    assert found.step.words == "512 tokens of 3 requests"
    assert found.trace.model == "llama-3.1-8b"
    (whole,) = explain([log], replayed=True, model="llama-3.2-1b").replays  # the last word on it
    assert whole.trace.model == "llama-3.2-1b"


def test_what_is_missing_is_said_and_the_rest_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("INFO vLLM API server version 0.26\n" + SCHEDULED)
    assert run(["explain", str(log), "--replay", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["replay"] == []
    assert any("--model" in one for one in found["unknown"])
    assert run(["explain", str(log), "--replay-svg", str(tmp_path / "x.svg")]) == 2
    assert "--model" in capsys.readouterr().err
    assert not (tmp_path / "x.svg").exists()


def test_words_json_and_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, picture = str(FOLDER / "made-long-prompts-2.brimrec.gz"), tmp_path / "x.svg"
    assert run(["explain", path, "--replay-svg", str(picture)]) == 0
    assert "replayed on the meta device" in capsys.readouterr().out
    assert ElementTree.fromstring(picture.read_text(encoding="utf-8")).tag.endswith("svg")
    assert run(["explain", path, "--replay", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)["replay"]
    assert [one["refused"] for one in replayed] == [True, False]
    assert set(replayed[0]["at"]) == {"module", "op", "shapes"}
    assert replayed[0]["live"]
