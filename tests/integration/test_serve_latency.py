"""What the connection adds to an answer: nothing waits in a buffer until the client has acknowledged what came before.

A client acknowledges late (40 ms) on a connection that has been used for a while, and at once on a fresh one.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from brim import SamplingParams
from tests.integration.served import Served, served
from tests.integration.test_chat import engine_of

TRIES = 3  # on a busy machine, one calm one is enough
LATE = 0.02  # seconds: half of what a late acknowledgement takes
PROMPT = [5, 6, 7, 8]
TOKENS = 64


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    with served(engine_of(kv_tokens=1024), threads=True) as found:
        yield found


@pytest.fixture
def connection(tiny: Served) -> Iterator[http.client.HTTPConnection]:
    """One that has been used for a while."""
    found = connected(tiny)
    used(found)
    yield found
    found.close()


def connected(tiny: Served) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(tiny.url).netloc, timeout=60)


def used(connection: http.client.HTTPConnection) -> None:
    for _ in range(20):
        answer(connection, "GET", "/health")


def answer(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> float:
    """Seconds until all of it was there."""
    began = time.perf_counter()
    sent = None if body is None else json.dumps(body)
    connection.request(method, path, sent, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    assert response.status == 200
    return time.perf_counter() - began


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health", None),
        ("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}),
    ],
)
def test_an_answer_on_a_used_connection_is_as_quick_as_on_a_fresh_one(
    tiny: Served, connection: http.client.HTTPConnection, method: str, path: str, body: Any
) -> None:
    def fresh() -> float:
        with_it = connected(tiny)
        try:
            return answer(with_it, method, path, body)
        finally:
            with_it.close()

    later = []
    for _ in range(TRIES):
        kept = statistics.median(answer(connection, method, path, body) for _ in range(15))
        later.append(kept - statistics.median(fresh() for _ in range(15)))
    assert min(later) < LATE


def test_tokens_are_streamed_as_the_engine_draws_them(tiny: Served, connection: http.client.HTTPConnection) -> None:
    """The first comes as soon as it was drawn, and the tenth of ten comes no later than in the engine."""
    first, between = [], []
    for _ in range(TRIES):
        used(connection)
        came, own = streamed_seconds(connection), own_seconds(tiny)
        first.append(came[0] - own[0])
        between.append(statistics.quantiles(came[1:], n=10)[-1] - statistics.quantiles(own[1:], n=10)[-1])
    assert min(first) < LATE
    assert min(between) < LATE


def own_seconds(tiny: Served) -> list[float]:
    """Seconds before each token of an answer, without HTTP."""
    running = tiny.server.lifecycle.running
    assert running is not None

    async def times() -> list[float]:
        params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
        began = time.perf_counter()
        updates = running.serving.stream(PROMPT, params)
        return [began, *[time.perf_counter() async for update in updates if update.token is not None]]

    return differences(asyncio.run(times()))


def streamed_seconds(connection: http.client.HTTPConnection) -> list[float]:
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True, "logprobs": 0}
    found = [time.perf_counter()]
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    while line := response.readline():
        if line.startswith(b"data: {"):
            found.append(time.perf_counter())
    return differences(found)


def differences(times: list[float]) -> list[float]:
    assert len(times) == TOKENS + 1
    return [later - earlier for earlier, later in pairwise(times)]
