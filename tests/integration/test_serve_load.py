"""A server under load: crowds that come and go, rubbish among them, and an hour as a service has it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from brim.bench.asking import ask_once
from brim.bench.lengths import Between
from brim.bench.loops import Mix
from brim.bench.measure import LoadMeasurement, LoadSettings, Replay
from brim.bench.production import production_trace
from brim.bench.records import Ask, Ending
from brim.client.address import parse_url
from brim.client.client import Client
from brim.engine.engine import Engine
from brim.engine.settings import EngineSettings
from brim.serve.settings import RequestLimits
from tests.conftest import needs_image_files
from tests.integration.served import Served, served

PATH = "/v1/completions"
SOAK_SECONDS = float(os.environ.get("BRIM_SOAK_SECONDS", "3600"))
GROWTH_BYTES = 64 << 20  # of a process under a steady load, at most
WRONG = (
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"prompt": []}',
    b'{"prompt": "x", "n": 0}',
    b'{"prompt": [-1]}',
    b'{"colour": 1}',
    b"[" * 50_000,
)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def grown(held: list[int]) -> int:
    """From the second quarter of a run, when all has been used once, to its last one."""
    quarter = len(held) // 4
    return int(median(held[-quarter:]) - median(held[quarter : 2 * quarter]))


async def visit(client: Client, numbers: random.Random) -> str:
    """One of the crowd: stays to the end, hangs up, or sends what no server should get; how that ended."""
    way = numbers.choice(["stays", "stays", "leaves", "rubbish", "oversized"])
    if way == "rubbish":
        return f"rubbish {(await client.send('POST', PATH, numbers.choice(WRONG))).status}"
    if way == "oversized":
        body = json.dumps({"prompt": "x" * 60_000}).encode()
        return f"oversized {(await client.send('POST', PATH, body)).status}"
    tokens = numbers.randint(2, 20)
    prompt = [numbers.randrange(3, 250) for _ in range(numbers.randint(1, 150))]
    body_ = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    options = {"stream_options": {"include_usage": True}}
    ask = Ask(len(prompt), tokens, leaves_after=tokens // 2 if way == "leaves" else None)
    found = await asyncio.create_task(ask_once(client, PATH, body_ | options, ask, 0.0))
    if found.ending is Ending.ANSWERED:
        return "answered" if found.answer_tokens == tokens else "answered too little"
    if found.ending is Ending.REFUSED:
        await asyncio.sleep(numbers.random())
    return found.error or str(found.ending)


def crowd(server: Served, clients: int, seconds: float) -> tuple[Counter[str], list[int]]:
    """Clients that come again and again; how they ended, and what this process held in the meantime."""
    until = time.monotonic() + seconds
    ended: Counter[str] = Counter()
    held: list[int] = []

    async def one(client: Client, numbers: random.Random) -> None:
        while time.monotonic() < until:
            ended[await visit(client, numbers)] += 1
            if sum(ended.values()) % 100 == 0:
                held.append(resident_bytes())

    async def everybody() -> None:
        client = Client(parse_url(server.url))
        await asyncio.gather(*(one(client, random.Random(number)) for number in range(clients)))
        client.close()

    asyncio.run(everybody())
    return ended, held


@pytest.mark.parametrize(("clients", "seconds"), [(200, 3.0), pytest.param(200, 120, marks=pytest.mark.soak)])
def test_a_crowd_comes_and_goes(clients: int, seconds: float) -> None:
    settings = EngineSettings(max_batch=16, max_batch_tokens=256)
    engine = Engine("brim-random", kv_tokens=4096, device="cpu", settings=settings)
    limits = RequestLimits(body_bytes=55_000)
    with served(engine, threads=True, model_name="random", max_queue=clients // 4, limits=limits) as found:
        ended, held = crowd(found, clients, seconds)
        assert found.is_empty()
        assert found.get("/health").json() == {"status": "ready"}
    assert ended["answered"] > 20, ended
    assert ended["left"] > 0, ended
    assert set(ended) <= {"answered", "left", "429 queue_full", "rubbish 400", "oversized 413", "rubbish 429"}, ended
    if seconds > 60:
        assert grown(held) < GROWTH_BYTES


def replayed(seconds: float, rate: float) -> None:
    engine = Engine(
        "brim-tiny-vl",
        kv_tokens=8192,
        device="cpu",
        settings=EngineSettings(max_batch=16, max_batch_tokens=256, max_length=512),
    )
    trace = production_trace(seconds, rate, 512)
    load = LoadSettings(Replay(trace), Mix(Between(1, 1), Between(1, 1)))
    with served(engine, model_name="vl", max_queue=64) as found:
        measurement = LoadMeasurement(parse_url(found.url), None, None, load)
        held: list[int] = []
        report = asyncio.run(measurement.run(lambda state: held.append(resident_bytes())))
        assert found.is_empty()
        assert found.get("/health").json() == {"status": "ready"}
    ended = Counter(one.ending for one in report.outcomes)
    assert sum(ended.values()) == len(trace.asks), "every request has an end"
    assert set(report.errors) <= {"429 queue_full"}, report.errors
    assert ended[Ending.ANSWERED] > 0.5 * len(trace.asks), ended
    assert ended[Ending.LEFT] > 0
    images = [one for one in report.outcomes if one.ask.images and one.ending is Ending.ANSWERED]
    assert len(images) > 0
    for one in report.answered:
        assert one.answer_tokens == one.ask.answer_tokens
    assert grown(held) < GROWTH_BYTES


@pytest.mark.soak
def test_an_hour_of_a_service_is_replayed() -> None:
    """$BRIM_SOAK_SECONDS makes it shorter."""
    needs_image_files()
    replayed(SOAK_SECONDS, 2.0)


def test_a_production_trace_is_the_same_for_a_seed_and_fits_the_context() -> None:
    trace = production_trace(600, 2.0, 512)
    assert trace == production_trace(600, 2.0, 512)
    assert trace != production_trace(600, 2.0, 512, seed=1)
    for ask in trace.asks:
        assert ask.prompt_tokens + ask.answer_tokens <= 512
    kinds = Counter({"image": 0, "leaves": 0, "long": 0})
    for ask in trace.asks:
        kinds.update({"image": ask.images, "leaves": ask.leaves_after is not None, "long": ask.prompt_tokens == 384})
    assert min(kinds.values()) > 20, kinds
