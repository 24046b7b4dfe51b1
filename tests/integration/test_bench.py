"""`brim bench` against a real server, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from brim.bench.asking import ask_once
from brim.bench.lengths import Between
from brim.bench.loops import Mix
from brim.bench.measure import Closed, LoadMeasurement, LoadSettings, Open, Replay
from brim.bench.records import Ask, Ending, RequestOutcome
from brim.bench.report import Report
from brim.bench.trace import parse_trace
from brim.cli.main import run
from brim.client.address import Address, parse_url
from brim.client.client import Client
from brim.engine.engine import Engine
from brim.engine.settings import EngineSettings
from tests.integration.served import Served, served, wait

MIX = Mix(Between(20, 60), Between(2, 5))


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    settings = EngineSettings(max_batch=4, max_batch_tokens=64, max_length=256)
    engine = Engine("brim-random", kv_tokens=2048, device="cpu", settings=settings)
    with served(engine, threads=True, model_name="random", max_queue=2, api_keys=("secret",)) as found:
        yield found


def measured(server: Served, load: LoadSettings) -> Report:
    report = asyncio.run(LoadMeasurement(parse_url(server.url), server.key, None, load).run())
    assert server.is_empty()
    return report


def test_clients_that_wait_get_the_lengths_that_were_asked_for(server: Served) -> None:
    report = measured(server, LoadSettings(Closed(4), MIX, requests=12, chat=False))
    assert (report.model, len(report.answered), report.errors) == ("random", 12, {})
    for one in report.outcomes:
        assert one.answer_tokens == one.ask.answer_tokens
        assert one.ask.prompt_tokens - 3 <= one.prompt_tokens <= one.ask.prompt_tokens, "every byte is a token"
    assert report.ttft is not None
    assert report.end_to_end is not None
    assert 0 < report.ttft.p50 <= report.end_to_end.p50
    assert report.memory[-1].kv_held == 0


def test_more_than_the_queue_holds_is_refused_and_counted(server: Served) -> None:
    load = LoadSettings(Open(2000.0), Mix(Between(20, 20), Between(20, 20)), requests=40, vocab=200)
    report = measured(server, load)
    assert len(report.answered) + len(report.ended(Ending.REFUSED)) == 40
    assert report.errors == {"429 queue_full": len(report.ended(Ending.REFUSED))}
    assert all(one.retry_after >= 1 for one in report.ended(Ending.REFUSED))
    assert len(report.answered) >= 6


def test_the_servers_own_log_is_replayed_with_those_who_hung_up(server: Served) -> None:
    leaving = parse_trace(['{"at": 0, "prompt_tokens": 20, "completion_tokens": 200, "leaves_after": 3}'], "t")
    server.log.clear()
    first = measured(server, LoadSettings(Replay(leaving), MIX, vocab=200))
    assert [one.ending for one in first.outcomes] == [Ending.LEFT]
    wait(lambda: server.log)  # a server notices a moment later that somebody has left
    (entry,) = server.log
    assert (entry["status"], entry["prompt_tokens"]) == (499, 20)
    assert 3 <= entry["completion_tokens"] < 200
    recorded = parse_trace([json.dumps(entry)], "log")
    again = measured(server, LoadSettings(Replay(recorded), MIX, vocab=200))
    assert [one.ending for one in again.outcomes] == [Ending.LEFT]


def test_the_command_writes_json_and_a_picture(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--api-key secret --token-ids 200 --requests 3 --prompt-tokens 9 --answer-tokens 2 --json"
    assert run(["bench", "--url", server.url, *options.split(), "--svg", str(tmp_path / "load.svg")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"]["answered"], found["completion_tokens"]) == (3, 6)
    assert (tmp_path / "load.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--url http://127.0.0.1:9", "connection refused"),
        ("--url ftp://x", "url 'ftp://x'"),
        ("--rate 0", "rate is 0"),
        ("--concurrency 0", "concurrency is 0"),
        ("--requests 0", "requests is 0"),
        ("--prompt-tokens few", "prompt-tokens 'few'"),
        ("--replay /nowhere", "replay /nowhere: cannot be read"),
        ("--slo-ttft soon", "slo-ttft 'soon'"),
        ("--token-ids 3", "token-ids is 3"),
        ("--speed -1", "speed is -1"),
    ],
)
def test_bad_options_get_one_line(options: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *options.split()]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_wrong_key_is_said(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--url", server.url, "--api-key", "wrong"]) == 2
    assert "api-key" in capsys.readouterr().err


# -- servers that misbehave ----------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
TOKEN = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"


def asked(answer: bytes) -> RequestOutcome:
    """What came of a request to a server that sends just these bytes, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def scenario() -> RequestOutcome:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            client = Client(Address("127.0.0.1", server.sockets[0].getsockname()[1]))
            return await asyncio.create_task(ask_once(client, "/v1/chat/completions", {}, Ask(1, 2), 0.0))

    return asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize(
    ("answer", "ending", "error"),
    [
        (HEAD + TOKEN + TOKEN + USAGE + DONE, Ending.ANSWERED, None),
        (HEAD + TOKEN, Ending.FAILED, "cut_off"),
        (HEAD + TOKEN + b'data: {"error": {"code": "request_failed"}}\n\n', Ending.FAILED, "in stream: request_failed"),
        (HEAD + b"data: {\n\n" + DONE, Ending.FAILED, "in stream: bad_event"),
        (b"", Ending.FAILED, "lost"),
        (b"hello\r\n\r\n", Ending.FAILED, "not_http"),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\nno", Ending.FAILED, "500"),
        (b"HTTP/1.1 429 Full\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n", Ending.REFUSED, "429"),
    ],
)
def test_what_goes_wrong_is_told_by_kind(answer: bytes, ending: Ending, error: str | None) -> None:
    found: Any = asked(answer)
    assert (found.ending, found.error) == (ending, error)
    if ending is Ending.ANSWERED:
        assert (found.prompt_tokens, found.answer_tokens, len(found.gaps)) == (7, 2, 1)
