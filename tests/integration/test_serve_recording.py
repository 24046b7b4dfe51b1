"""The black box of a server: its steps and events are in the file, also while it runs and after it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import httpx

from brim.engine.engine import Engine
from brim.engine.injection import fail_long_prompts
from brim.engine.settings import EngineSettings
from brim.record.entries import NoteKind, StepState
from brim.record.reader import read_recording
from brim.record.writer import open_recording
from brim.serve.server import listen
from tests.integration.served import served, wait

SECRET = "the quick brown fox"


def test_steps_and_events_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "r"
    engine = Engine(
        "brim-random", kv_tokens=2048, device="cpu", settings=EngineSettings(max_batch=4, max_batch_tokens=64)
    )
    with served(engine, model_name="random", recording=open_recording(path), api_keys=("hidden-key",)) as server:
        server.post("/v1/completions", {"prompt": SECRET, "max_tokens": 5, "ignore_eos": True})
        fail_long_prompts(engine, 40)
        server.post("/v1/completions", {"prompt": "x " * 60, "max_tokens": 5})
        wait(lambda: any(note.kind is NoteKind.RESCUE for note in read_recording(path).notes), 10)
        found = read_recording(path)
        assert not found.ended_in_order
    prompt, *decodes = [step for step in found.steps if step.state is StepState.LAUNCHED]
    assert (prompt.chunks, prompt.decodes, prompt.running) == (1, 0, 1)
    assert prompt.prompt_tokens > 4
    assert [step.decodes for step in decodes[:4]] == [1, 1, 1, 1]
    failed = [step for step in found.steps if step.state is StepState.OUT_OF_MEMORY]
    assert failed[0].prompt_tokens >= 40
    kinds = {note.kind for note in found.notes}
    assert {NoteKind.STARTED, NoteKind.STATE, NoteKind.OUT_OF_MEMORY, NoteKind.RESCUE} <= kinds
    assert found.start is not None
    assert (found.start.engine, found.start.model, found.start.kv_tokens) == ("brim", "random", 2048)
    assert read_recording(path).ended_in_order
    data = path.read_bytes()
    assert SECRET.encode() not in data
    assert b"hidden-key" not in data
    assert b"127.0.0.1" not in data
    assert replace(found, steps=()).pid == os.getpid()


def test_a_server_that_was_killed_leaves_its_last_step(tmp_path: Path) -> None:
    path = tmp_path / "r"
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    listening.close()
    command = [sys.executable, "-m", "brim", "serve", "brim-random", "--port", str(port), "--quiet", "--no-request-log"]
    child = subprocess.Popen(
        [*command, "--memory", "300MiB", "--no-store", "--record", str(path)],
        env={**os.environ, "BRIM_CACHE": str(tmp_path)},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait(lambda: _is_ready(url), 120)
        with httpx.stream(
            "POST",
            f"{url}/v1/completions",
            json={"prompt": "a b", "max_tokens": 1000, "ignore_eos": True, "stream": True},
            timeout=60,
        ) as answer:
            lines = answer.iter_lines()
            for _ in range(20):
                next(lines)
            os.kill(child.pid, signal.SIGKILL)
            killed = time.time()
    finally:
        child.kill()
        child.wait()
    found = read_recording(path)
    assert not found.ended_in_order
    assert len(found.steps) >= 10
    assert killed - found.steps[-1].time < 1.0
    assert found.start is not None
    assert {"weights", "kv"} <= {line.name for line in found.start.ledger}


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False
