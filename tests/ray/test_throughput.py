"""Two replicas do twice the work of one, where a step is a timer."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray.serve")

from brim.ray import application
from tests.ray.cluster import OnRay, deploy
from tests.ray.timed import TimedReplica

TOKENS, REQUESTS, CLIENTS = 30, 64, 10
OPTIONS = "--memory 512MiB --max-seqs 2 --max-queue 64 --no-request-log"


def tokens_per_second(found: OnRay, replicas: int) -> float:
    deploy(found, {"model": "brim-tiny", "replicas": replicas, "options": OPTIONS})

    def ask(number: int) -> int:
        body = {"prompt": [5, 6, 7 + number], "max_tokens": TOKENS, "ignore_eos": True}
        answer = found.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["completion_tokens"])

    with ThreadPoolExecutor(CLIENTS) as clients:  # each asks again as soon as it has its answer
        began = time.perf_counter()
        tokens = sum(clients.map(ask, range(REQUESTS)))
        return tokens / (time.perf_counter() - began)


def test_two_replicas_are_almost_twice_as_fast(on_ray: OnRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "EngineReplica", TimedReplica)
    one = tokens_per_second(on_ray, 1)
    two = tokens_per_second(on_ray, 2)
    assert one > 50
    assert two >= 1.8 * one
