"""One client that floods the server, and another that asks now and then."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median

import httpx
import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from brim.engine.engine import Engine
from brim.engine.settings import EngineSettings
from brim.serve.http.keys import Keys
from tests.integration.served import SECONDS, Served, served, wait
from tests.integration.streaming_clients import Held

MANY, FEW = "key-of-many", "key-of-few"
PATH = "/v1/completions"
CONNECTIONS, ANSWERS = 40, 8
BATCH = 16


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """As many places as the flood asks for."""
    settings = EngineSettings(max_batch=BATCH, max_batch_tokens=128)
    engine = Engine("brim-random", kv_tokens=8192, device="cpu", settings=settings)
    places = CONNECTIONS * ANSWERS
    with served(engine, threads=True, api_keys=(MANY, FEW), max_queue=places - BATCH) as found:
        yield found
        assert found.is_empty()


def ask(client: httpx.Client, key: str, tokens: int, answers: int = 1, number: int = 0) -> tuple[int, float]:
    body = {"prompt": [5, 6, number % 200 + 3], "max_tokens": tokens, "n": answers, "ignore_eos": True}
    began = time.monotonic()
    found = client.post(PATH, json=body, headers={"Authorization": f"Bearer {key}"})
    if found.status_code == 429:
        assert int(found.headers["retry-after"]) >= 1
    return found.status_code, time.monotonic() - began


@contextmanager
def flooded(server: Served) -> Iterator[list[tuple[int, float]]]:
    """All connections ask for all their answers, again and again; what became of each request."""
    ended: list[tuple[int, float]] = []
    enough = threading.Event()

    def flood(number: int) -> None:
        with httpx.Client(base_url=server.url, timeout=SECONDS) as client:
            while not enough.is_set():
                ended.append(ask(client, MANY, 24, ANSWERS, number))
                if ended[-1][0] == 429:
                    enough.wait(0.1)

    running = server.server.lifecycle.running
    assert running is not None
    with ThreadPoolExecutor(CONNECTIONS) as crowd:
        for number in range(CONNECTIONS):
            crowd.submit(flood, number)
        try:
            wait(lambda: running.gate.inside == running.gate.places)
            yield ended
        finally:
            enough.set()


def test_a_flood_of_one_key_refuses_nobody_else_and_holds_nobody_up(server: Served) -> None:
    with httpx.Client(base_url=server.url, timeout=SECONDS) as client:
        alone = [ask(client, FEW, 8) for _ in range(5)]
        with flooded(server) as flood:
            beside = [ask(client, FEW, 8, number=number) for number in range(25)]
            report = client.get("/v1/memory", headers={"Authorization": f"Bearer {FEW}"}).json()["requests"]
    assert [status for status, _ in alone + beside] == [200] * 30
    answered = [seconds for status, seconds in flood if status == 200]
    assert {status for status, _ in flood} <= {200, 429}, "nothing that has begun is cut off"
    assert len(answered) >= CONNECTIONS
    # It waits for the next free slot, and not for the 320 answers that were there before it.
    assert median(seconds for _, seconds in beside) < median(answered) / 4
    assert median(seconds for _, seconds in beside) < 20 * median(seconds for _, seconds in alone)
    assert report["displaced"] >= 1
    assert report["refused_by_client_limit"] == 0
    assert report["client"].keys() >= {"share", "weight", "inside", "fair_places", "clients"}


def test_the_log_tells_the_clients_apart_and_no_key(server: Served) -> None:
    names = [tenant.name for key in (MANY, FEW) if (tenant := Keys((MANY, FEW)).tenant(key)) is not None]
    with httpx.Client(base_url=server.url, timeout=SECONDS) as client, flooded(server):
        assert ask(client, FEW, 8)[0] == 200
        metrics = client.get("/metrics", headers={"Authorization": f"Bearer {FEW}"}).text
    assert f'brim_client_inside{{key="{names[0]}"}}' in metrics
    assert "brim_queue_displaced_total" in metrics
    wait(lambda: any(entry["error"] == "displaced" for entry in server.log))
    displaced = [entry for entry in server.log if entry["error"] == "displaced"]
    assert {(entry["key"], entry["status"], entry["completion_tokens"]) for entry in displaced} == {(names[0], 429, 0)}
    assert {entry["key"] for entry in server.log} == set(names)
    assert {entry["address"] for entry in server.log} == {"127.0.0.1"}
    assert not any(key in json.dumps(server.log) for key in (MANY, FEW))


def test_a_key_has_no_more_inside_than_it_may_and_the_other_is_let_in() -> None:
    settings = EngineSettings(max_batch=4, max_batch_tokens=32)
    engine = Engine("brim-random", kv_tokens=2048, device="cpu", settings=settings)
    with served(engine, threads=True, api_keys=(MANY, FEW), max_per_key=4) as found:
        with found.client() as client:
            refused = client.post(PATH, json={"prompt": [5], "n": 5})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
            body = {"prompt": [5], "n": 4, "max_tokens": 100, "ignore_eos": True, "stream": True}
            with client.stream("POST", PATH, json=body) as streaming:
                lines = streaming.iter_lines()
                next(lines)
                held = Held(engine, "step")
                second = found.post(PATH, {"prompt": [5], "max_tokens": 2})
                held.let_go()
                assert (second.status_code, second.json()["error"]["code"]) == (429, "client_limit")
                assert "--max-per-key" in second.json()["error"]["message"]
                assert int(second.headers["retry-after"]) >= 1
                with httpx.Client(base_url=found.url, timeout=SECONDS) as other:
                    assert ask(other, FEW, 2)[0] == 200
                assert list(lines)[-2] == "data: [DONE]"
        assert found.is_empty()
