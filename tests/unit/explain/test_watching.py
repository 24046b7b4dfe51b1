"""A server watched from outside, and what its recording says."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from brim.explain.explanation import explain
from brim.explain.watching import ServerLook, ServerRecorder, look_from
from brim.record.entries import NoteKind
from brim.record.reader import read_recording
from brim.record.writer import open_recording

VLLM = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="m"} 8.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.875
vllm:num_preemptions_total{engine="0",model_name="m"} %d
"""
BRIM = """brim_running 2.0
brim_kv_blocks{state="held"} 5.0
brim_kv_blocks{state="cached"} 1.0
brim_kv_blocks{state="free"} 4.0
"""


def test_metrics_of_engines() -> None:
    assert look_from(VLLM % 7) == ServerLook(8, 3, 875_000, 0, 125_000, 7)
    assert look_from(BRIM) == ServerLook(2, 0, 5, 1, 4, 0)
    assert look_from('vllm:num_requests_running NaN\nvllm:num_requests_waiting 1e400\nx{"} y\n\0').running == 0


def test_preemptions_are_explained(tmp_path: Path) -> None:
    counts = itertools.count(0, 20)
    recorder = ServerRecorder(open_recording(tmp_path / "r"), lambda: VLLM % next(counts))
    recorder.start("vllm", "", 0)
    assert all(recorder.look() for _ in range(6))
    recorder.close()
    found = explain([tmp_path / "r"])
    assert (found.diagnosis.cause, found.incident.engine) == ("pool", "vllm")
    assert [step.preemptions for step in read_recording(tmp_path / "r").steps] == [0, 20, 40, 60, 80, 100]


def test_a_log_that_ends_in_a_refusal_is_explained_without_its_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("INFO Received request prompt: 'a secret about memory', params: 1\n")
    recorder = ServerRecorder(open_recording(tmp_path / "r"), lambda: VLLM % 0, log=log)
    recorder.start("vllm", "", 0)
    recorder.look()
    with log.open("a") as file:
        file.write("INFO 03-27 [model_runner.py:1442] Capturing cudagraphs for decoding.\n")
        file.write("ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total ")
    recorder.look()
    with log.open("a") as file:
        file.write("capacity of 44.53 GiB of which 448.00 KiB is free.\n")
    recorder.look()
    recorder.close()
    assert b"secret" not in (tmp_path / "r").read_bytes()
    found = explain([tmp_path / "r"])
    (refusal,) = found.incident.refusals
    assert (refusal.tried_bytes, refusal.free_bytes) == (2 << 20, 448 << 10)
    assert found.diagnosis.cause == "graphs"


def test_a_server_that_goes_away_is_noted_once(tmp_path: Path) -> None:
    def gone() -> str:
        raise OSError("refused")

    recorder = ServerRecorder(open_recording(tmp_path / "r"), gone)
    assert not recorder.look()
    assert not recorder.look()
    recorder.close()
    states = [note.text for note in read_recording(tmp_path / "r").notes if note.kind is NoteKind.STATE]
    assert states == ["the server does not answer: refused"]


@pytest.mark.parametrize("value", ["-1", "NaN", "1e999"])
def test_values_that_are_none_do_no_harm(value: str) -> None:
    assert look_from(f"vllm:num_requests_running {value}\n").running == 0
