"""`brim serve --replicas 2`: a process that serves with two engines, drains at a signal and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray.serve")

from tests.ray.cluster import SMALL, OnRay, free_port, message, processes, wait


def test_two_replicas_by_one_command() -> None:
    port = free_port()
    words = ["serve", "brim-tiny", "--replicas", "2", "--port", str(port), *SMALL.split()]
    with tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", "brim.cli.main", *words]
        started = subprocess.Popen(command, stderr=said, stdout=said, env=dict(os.environ))
        try:
            found = OnRay(f"http://127.0.0.1:{port}", Path())
            wait(lambda: started.poll() is not None or found.ready(2), 180)
            assert started.poll() is None, _text(said)
            answer = found.post("/v1/chat/completions", {"messages": [message("Hi.")], "max_tokens": 4})
            assert answer.status_code == 200
            assert len(found.replicas()) == 2
            started.send_signal(signal.SIGTERM)
            assert started.wait(90) == 0, _text(said)
            assert "stopped" in _text(said)
        finally:
            started.kill()
            started.wait(30)
    wait(lambda: not processes(f"--port {port}"), 30)


def test_a_port_has_to_be_named() -> None:
    command = [sys.executable, "-m", "brim.cli.main", "serve", "--replicas", "2", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "port is 0" in done.stderr


def _text(said: object) -> str:
    said.seek(0)  # type: ignore[attr-defined]
    return said.read().decode(errors="replace")[-3000:]  # type: ignore[attr-defined]
