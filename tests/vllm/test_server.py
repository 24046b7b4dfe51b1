"""`brim vllm serve` behind HTTP, asked by the official client."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.vllm.starts import MODEL, PROMPTS
from tests.vllm.test_worker import SMALL, plain

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="make test-vllm installs it")

_SECONDS = 300


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that is up."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log.txt"
    flags = {
        "--max-model-len": "512",
        "--max-num-batched-tokens": "512",
        "--max-num-seqs": "8",
        "--seed": "0",
        "--gpu-memory-utilization": "0.2",
        "--additional-config": json.dumps({"brim": SMALL}),
        "--served-model-name": "tiny",
        "--port": str(port),
    }
    words = ["--enforce-eager", *[word for flag in flags.items() for word in flag]]
    command = [sys.executable, "-m", "brim.cli.main", "vllm", "serve", str(MODEL), *words]
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "BRIM_LEASES": str(log.parent)}
    with log.open("w") as out, subprocess.Popen(command, env={**os.environ, **own}, stdout=out, stderr=out) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    pytest.fail(log.read_text()[-4000:])


def test_the_official_client_gets_the_tokens_of_plain_vllm(server: str) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{server}/v1", api_key="none")
    given = {
        "model": "tiny",
        "max_tokens": 24,
        "temperature": 0,
        "extra_body": {"ignore_eos": True, "return_token_ids": True},
    }
    answer = client.completions.create(prompt=PROMPTS[0], **given)
    assert answer.choices[0].model_dump()["token_ids"] == plain()["tokens"][0]


def test_the_fit_is_in_the_metrics(server: str) -> None:
    with urllib.request.urlopen(f"{server}/metrics") as page:
        lines = page.read().decode().splitlines()
    found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith("brim:")}
    assert set(found) == {"brim:kv_tokens", "brim:kv_bytes", "brim:canary_bytes", "brim:headroom_bytes", "brim:kept"}
    assert found["brim:kept"] == 1
    assert found["brim:canary_bytes"] == 4 << 20
    assert found["brim:kv_tokens"] > 512
