"""Two replicas do twice the work of one, where a step is a timer."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray.serve")

from brim.ray import application
from tests.ray.cluster import OnRay, deploy
from tests.ray.timed import TimedReplica

TOKENS, CLIENTS = 30, 12
WARM_UP_SECONDS, SECONDS = 2.0, 10.0
OPTIONS = "--memory 512MiB --max-seqs 2 --max-queue 64 --no-request-log"


def tokens_per_second(found: OnRay, replicas: int) -> float:
    """Of answers that end while all clients ask, each again as soon as it has its answer."""
    deploy(found, {"model": "brim-tiny", "replicas": replicas, "options": OPTIONS})
    ended: list[tuple[float, int]] = []
    stopped = threading.Event()

    def ask(number: int) -> None:
        body = {"prompt": [5, 6, 7 + number], "max_tokens": TOKENS, "ignore_eos": True}
        while not stopped.is_set():
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            ended.append((time.perf_counter(), int(answer.json()["usage"]["completion_tokens"])))

    # One pool of connections: making a client takes CPU time, which the replicas share.
    with ThreadPoolExecutor(CLIENTS) as clients, found.client() as client:
        asking = [clients.submit(ask, number) for number in range(CLIENTS)]
        time.sleep(WARM_UP_SECONDS)
        began = time.perf_counter()
        time.sleep(SECONDS)
        until = time.perf_counter()
        stopped.set()
        for one in asking:
            one.result()
    return sum(tokens for at, tokens in ended if began < at <= until) / (until - began)


def test_two_replicas_are_almost_twice_as_fast(on_ray: OnRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "EngineReplica", TimedReplica)
    one = tokens_per_second(on_ray, 1)
    two = tokens_per_second(on_ray, 2)
    assert one > 50
    assert two >= 1.8 * one
