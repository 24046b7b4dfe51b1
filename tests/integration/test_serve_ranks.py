"""`brim serve --tp 2` as its own process: it starts its ranks, answers as one device does, and takes them with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("llguidance")

import httpx

from tests.integration.served import wait

pytestmark = pytest.mark.soak  # two ranks load and fit: a minute

ADA = {"messages": [{"role": "user", "content": "My name is Ada. What is my name?"}], "temperature": 0}
YES = {"messages": [{"role": "user", "content": "Is it?"}], "response_format": {"type": "json_object"}, "max_tokens": 9}


def test_ranks_start_answer_and_end_together(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "brim.cli.main", "serve", "--tp", "2", "--port", "0", "--kv-tokens", "4096"]
    log = tmp_path / "log"
    with log.open("w") as written:
        process = subprocess.Popen([*command, "--no-store", "--no-request-log"], stderr=written, env=environment)
    try:
        wait(lambda: "listening" in log.read_text())
        (url,) = re.findall(r"http://\S+(?=;)", log.read_text())
        wait(lambda: httpx.get(f"{url}/health", timeout=120).status_code == 200, seconds=300)
        answer = httpx.post(f"{url}/v1/chat/completions", json=ADA, timeout=120).json()
        assert answer["choices"][0]["message"]["content"] == "Your name is Ada."
        forced = httpx.post(f"{url}/v1/chat/completions", json=YES, timeout=120).json()
        assert forced["choices"][0]["message"]["content"].lstrip().startswith("{")
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 900}, timeout=0.2)
        wait(lambda: httpx.get(f"{url}/v1/memory", timeout=60).json()["kv"]["blocks_held"] == 0)
        again = httpx.post(f"{url}/v1/chat/completions", json=ADA, timeout=120).json()
        assert again["choices"] == answer["choices"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
