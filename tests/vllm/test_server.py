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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from brim.vllm import SCHEDULER
from tests.vllm.starts import MODEL, PROMPTS, REFUSED
from tests.vllm.test_worker import SMALL, plain

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="make test-vllm installs it")

_SECONDS = 300


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def serving(command: list[str], folder: Path, *more: str) -> Iterator[str]:
    """The address of a server that is up."""
    port, log = free_port(), folder / "log.txt"
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
    words = [str(MODEL), "--enforce-eager", *[word for flag in flags.items() for word in flag], *more]
    root = str(Path(__file__).parents[2])
    own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "BRIM_LEASES": str(folder)}
    environment = {**os.environ, **own, "PYTHONPATH": root}
    with (
        log.open("w") as out,
        subprocess.Popen([*command, *words], env=environment, stdout=out, stderr=out) as process,
    ):
        try:
            _wait(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = [sys.executable, "-m", "brim.cli.main", "vllm", "serve"]
    with serving(command, tmp_path_factory.mktemp("server")) as address:
        yield address


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


def test_the_fit_and_rescues_are_in_the_metrics(server: str) -> None:
    from brim.vllm.metrics import GAUGES, RESCUE_GAUGES

    with urllib.request.urlopen(f"{server}/metrics") as page:
        lines = page.read().decode().splitlines()
    found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith("brim:")}
    assert set(found) == {*GAUGES, *RESCUE_GAUGES}
    assert found["brim:kept"] == 1
    assert found["brim:canary_bytes"] == 4 << 20
    assert found["brim:kv_tokens"] > 512
    assert (found["brim:rescues_total"], found["brim:step_token_limit"]) == (0, 512)


def test_a_request_that_never_fits_gets_an_error_and_the_server_lives_on(tmp_path: Path) -> None:
    from openai import InternalServerError, OpenAI

    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    brims = ["--worker-cls", "tests.vllm.faulty.Worker", "--scheduler-cls", SCHEDULER]
    with serving(command, tmp_path, *brims) as address:
        client = OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)

        def asked(prompt: str, tokens: int) -> object:
            extra = {"ignore_eos": True, "return_token_ids": True}
            try:
                answer = client.completions.create(
                    model="tiny", prompt=prompt, max_tokens=tokens, temperature=0, extra_body=extra
                )
            except InternalServerError as error:
                return error.status_code
            return answer.choices[0].model_dump()["token_ids"]

        for _ in range(2):
            with ThreadPoolExecutor(8) as clients:
                answers = [clients.submit(asked, prompt, 24) for prompt in PROMPTS]
                refused = clients.submit(asked, "Once", REFUSED)
            assert [one.result() for one in answers] == plain()["tokens"][: len(PROMPTS)]
            assert refused.result() == 500
        with urllib.request.urlopen(f"{address}/health") as health:
            assert health.status == 200
    assert "do not fit in a step even alone" in (tmp_path / "log.txt").read_text()
