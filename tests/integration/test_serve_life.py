"""The life of a server: it starts, answers, survives what fails, drains and ends."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import httpx

from brim.engine.engine import Engine
from brim.engine.injection import fail_long_prompts, failing_launches
from brim.engine.settings import EngineSettings
from brim.errors import DoesNotFit, InvalidRequest
from brim.records.progress import Stage, Told
from brim.serve.server import Server, address, listen
from brim.serve.service import Loaded
from brim.serve.settings import ServeSettings
from tests.conftest import needs_image_files
from tests.integration.faults import out_of_memory
from tests.integration.served import SECONDS, Served, served, wait
from tests.integration.streaming_clients import fail_at_a_step

LONG = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "Once", "max_tokens": 3, "ignore_eos": True}


def small() -> Engine:
    settings = EngineSettings(max_batch=4, max_batch_tokens=64)
    return Engine("brim-random", kv_tokens=2048, device="cpu", settings=settings)


@pytest.fixture
def server() -> Iterator[Served]:
    with served(small(), model_name="random") as found:
        yield found


# -- start ---------------------------------------------------------------------------------------------------------


class Slow:
    """A start that waits in the middle until it is let go, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = threading.Event()
        self._error = error

    def load(self, told: Told) -> Loaded:
        told(Stage("load", "weights", 3, 8))
        while not self.go.wait(0.01):
            told(Stage("load", "weights", 3, 8))
        if self._error is not None:
            raise self._error
        return Loaded(small())

    def fit(self, loaded: Loaded, told: Told) -> None:
        return None


def starting(starter: Slow) -> tuple[Server, str, Any]:
    listening = listen("127.0.0.1", 0)
    server = Server(ServeSettings("m", port=0), starter)
    pool = ThreadPoolExecutor(1)
    ended = pool.submit(lambda: asyncio.run(server.run(listening, signals=False)))
    url = address(listening)
    wait(lambda: server.lifecycle.stage.phase == "load")
    return server, url, ended


def test_it_answers_health_before_the_model_is_there() -> None:
    server, url, ended = starting(starter := Slow())
    found = httpx.get(f"{url}/health")
    assert (found.status_code, found.json()) == (503, {"status": "starting", "phase": "load (weights): 3 of 8"})
    early = httpx.post(f"{url}/v1/completions", json=SHORT)
    assert (early.status_code, early.json()["error"]["code"]) == (503, "server_starting")
    assert int(early.headers["retry-after"]) > 0
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "m"
    assert 'brim_state{state="starting"} 1.0' in httpx.get(f"{url}/metrics").text
    starter.go.set()
    wait(lambda: httpx.get(f"{url}/health").status_code == 200)
    server.stop()
    assert ended.result(SECONDS) == 0


def test_it_ends_at_once_while_it_starts() -> None:
    server, _, ended = starting(Slow())
    server.stop()
    assert ended.result(SECONDS) == 0


def test_a_start_that_fails_says_why() -> None:
    _, _, ended = starting(starter := Slow(DoesNotFit("it does not fit")))
    starter.go.set()
    with pytest.raises(DoesNotFit):
        ended.result(SECONDS)


def test_a_port_that_is_taken_is_said() -> None:
    taken = listen("127.0.0.1", 0)
    with pytest.raises(InvalidRequest, match="cannot listen there"):
        listen(*taken.getsockname())
    taken.close()


# -- what fails ----------------------------------------------------------------------------------------------------


def test_out_of_memory_costs_one_request(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with failing_launches(server.engine, lambda plan: out_of_memory()):
        whole = server.post("/v1/completions", SHORT)
        with server.client() as client, client.stream("POST", "/v1/completions", json=LONG) as streamed:
            streamed.read()
    for found in (whole, streamed):
        error = json.loads(found.text.removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "request_failed")
        assert "memory" in error["message"]
    assert server.get("/health").json()["status"] == "degraded"
    assert server.get("/health").status_code == 200
    assert server.post("/v1/completions", SHORT).status_code == 200
    assert server.get("/v1/memory").json()["health"]["ended_requests"] == 2


def test_an_injected_out_of_memory_costs_the_long_prompt(server: Served) -> None:
    fail_long_prompts(server.engine, 40)
    long = SHORT | {"prompt": [20] * 40}
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda body: server.post("/v1/completions", body), [SHORT, long, SHORT]))
    assert [one.status_code for one in found] == [200, 500, 200]
    assert "injected" in found[1].json()["error"]["message"]
    assert server.get("/v1/memory").json()["health"]["ended_requests"] == 1
    assert server.is_empty()


def test_a_model_without_a_template_takes_no_chat(server: Served) -> None:
    found = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi."}]})
    assert (found.status_code, found.json()["error"]["param"]) == (400, "messages")
    assert "no chat template" in found.json()["error"]["message"]
    tokens = server.post("/tokenize", {"prompt": "Hi"}).json()
    ids = [1, ord("H") + 3, ord("i") + 3]
    assert tokens == {"count": 3, "max_model_len": 2048, "tokens": ids, "token_strs": None}
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": "Hi"}
    plain = server.post("/tokenize", {"prompt": "Hi", "add_special_tokens": False})
    assert (plain.status_code, plain.json()["error"]["param"]) == (400, "add_special_tokens")


def test_an_engine_that_ends_is_not_hidden(server: Served) -> None:
    fail_at_a_step(server.engine, ValueError("out of luck"))
    found = server.post("/v1/completions", SHORT)
    assert (found.status_code, found.json()["error"]["code"]) == (503, "engine_unavailable")
    health = server.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "failed")
    assert server.get("/ping").status_code == 503
    assert "out of luck" in health.json()["reason"]
    later = server.post("/v1/completions", SHORT)
    assert (later.status_code, later.json()["error"]["code"]) == (503, "server_failed")


def test_a_worker_that_dies_is_replaced(server: Served) -> None:
    running = server.server.lifecycle.running
    assert running is not None
    for pool in running.tokenising._quick._started:
        for process in list(pool._processes.values()):  # type: ignore[attr-defined]
            process.kill()
    assert server.post("/v1/completions", SHORT).status_code == 200


def test_a_page_that_points_its_name_here_is_refused(server: Served) -> None:
    for host, status in (("evil.example:80", 421), ("", 421), ("localhost:1", 200), ("[::1]:8000", 200)):
        assert httpx.get(f"{server.url}/v1/models", headers={"Host": host}).status_code == status, host


# -- end -----------------------------------------------------------------------------------------------------------


def test_a_drain_answers_those_inside_and_refuses_others(server: Served) -> None:
    with server.client() as client, client.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.server.stop()
        wait(lambda: server.get("/health").json() == {"status": "draining"})
        refused = server.post("/v1/completions", SHORT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")
        left = [json.loads(line[6:]) for line in lines if line and not line.endswith("[DONE]")]
    assert left[-1]["choices"][0]["finish_reason"] == "length"
    server.thread.join(SECONDS)
    assert server.ended == [0]


def test_a_second_signal_cuts_answers_off(server: Served) -> None:
    with server.client() as client, client.stream("POST", "/v1/completions", json=LONG | {"n": 4}) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.server.stop()
        server.server.stop()
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_unavailable"
    server.thread.join(SECONDS)
    assert server.ended == [1]


# -- images --------------------------------------------------------------------------------------------------------


def image(side: int, colour: str) -> dict[str, Any]:
    pillow = pytest.importorskip("PIL.Image")
    written = BytesIO()
    pillow.new("RGB", (side, side), colour).save(written, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def test_images_are_seen() -> None:
    needs_image_files()
    engine = Engine(
        "brim-tiny-vl",
        kv_tokens=1024,
        device="cpu",
        settings=EngineSettings(max_batch=4, max_batch_tokens=256, max_length=256),
    )
    question = {"type": "text", "text": "What is it?"}

    def asked(*parts: dict[str, Any]) -> dict[str, Any]:
        return {
            "messages": [{"role": "user", "content": [*parts, question]}],
            "max_tokens": 6,
            "temperature": 0,
            "logprobs": True,
        }

    with served(engine, threads=True, model_name="vl") as found:
        small, large, other = (
            found.post("/v1/chat/completions", asked(image(side, colour))).json()
            for side, colour in ((56, "red"), (112, "red"), (56, "blue"))
        )
        assert large["usage"]["prompt_tokens"] > small["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]
        assert small["choices"][0]["logprobs"] != other["choices"][0]["logprobs"], "pixels change the answer"
        rolled = asked(image(56, "red")) | {"truncation": "auto"}
        rolled["messages"] = [*rolled["messages"], {"role": "assistant", "content": "Red."}] * 30 + rolled["messages"]
        answer = found.post("/v1/chat/completions", rolled)
        assert answer.json()["error"]["code"] == "invalid_value", "more images than are taken"
        rolled["messages"] = rolled["messages"][-31:]
        answer = found.post("/v1/chat/completions", rolled).json()
        assert answer["brim"]["evicted_turns"] > 0
        huge = found.post("/v1/chat/completions", asked(image(2000, "red")))
        assert huge.status_code == 400
        assert found.is_empty()


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command_serves_and_drains(tmp_path: Path) -> None:
    options = "serve brim-random --port 0 --device cpu:shared:64MiB --canary 8MiB --no-store --scaling off"
    sizes = "--max-seqs 4 --batch-tokens 64 --max-len 256 --served-model-name some/name"
    command = [sys.executable, "-m", "brim.cli.main", *options.split(), *sizes.split()]
    environment = {**os.environ, "BRIM_LEASES": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[3].rstrip(";")
        assert httpx.get(f"{url}/health", timeout=SECONDS).status_code in (200, 503)
        wait(lambda: httpx.get(f"{url}/health", timeout=SECONDS).status_code == 200)
        answer = httpx.post(f"{url}/v1/completions", json=SHORT | {"model": "some/name"}, timeout=SECONDS)
        assert answer.json()["usage"]["completion_tokens"] == 3
        memory = httpx.get(f"{url}/v1/memory", timeout=SECONDS).json()
        assert memory["now"]["total_bytes"] == 64 << 20
        (lease,) = memory["leases"]
        assert (lease["pid"], lease["role"], lease["state"]) == (process.pid, "llm", "held")
        assert memory["kv"]["bytes"] < lease["held_bytes"] <= lease["promised_bytes"] == 64 << 20
        assert memory["fit"]["kv_bytes"] == memory["kv"]["bytes"]
        names = {item["name"] for item in memory["fit"]["items"]}
        assert {"weights", "activation", "kv", "canary"} <= names
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, rest
    logged = [json.loads(line) for line in rest.splitlines() if line.startswith("{")]
    assert [entry["status"] for entry in logged] == [200]
    assert "stopped" in rest


def test_a_disk_that_fails_costs_a_warning(tmp_path: Path) -> None:
    """No cache can be written, of Brim, of torch or of Triton: there is a file where a folder should be."""
    nowhere = tmp_path / "a file"
    nowhere.touch()
    folders = {name: str(nowhere / name) for name in ("BRIM_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    options = "serve brim-random --port 0 --memory 64MiB --canary 8MiB --scaling off"
    sizes = "--max-seqs 4 --batch-tokens 64 --max-len 256"
    command = [sys.executable, "-m", "brim.cli.main", *options.split(), *sizes.split()]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **folders}) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[3].rstrip(";")
        wait(lambda: httpx.get(f"{url}/health", timeout=5).status_code == 200)  # each of them is answered soon
        assert httpx.post(f"{url}/v1/completions", json=SHORT, timeout=SECONDS).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, rest
    warned = [line for line in rest.splitlines() if "warning: " in line]
    assert [sum(name in line for line in warned) for name in folders] == [2, 1, 1]  # fits, and the recording
    assert all("Not a directory" in line for line in warned)
    assert nowhere.is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--host 0.0.0.0", "no api-key"),
        ("--tp 0", "tp is 0"),
        ("--max-queue -1", "max-queue is -1"),
        ("--max-body much", "max-body"),
        ("--max-connections 0", "max-connections is 0"),
        ("--header-seconds 0", "header-seconds is 0"),
        ("--body-seconds nan", "body-seconds is nan"),
        ("--idle-seconds -1", "idle-seconds is -1"),
        ("--scaling odd", "scaling"),
        ("--inject-out-of-memory 0", "inject-out-of-memory is 0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(
    options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from brim.cli.main import run

    assert run(["serve", *options.split()]) == 2
    assert said in capsys.readouterr().err
