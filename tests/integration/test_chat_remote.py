"""`brim chat --url`: a conversation in the terminal that a server answers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from brim.cli.main import run
from brim.client.address import Address, parse_url
from brim.client.client import Client
from brim.client.conversation import RemoteConversation
from brim.engine.engine import Engine
from brim.engine.settings import EngineSettings
from brim.errors import InvalidRequest
from tests.integration.served import Served, served

LENGTH = 120


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    settings = EngineSettings(max_batch=4, max_batch_tokens=128, max_length=LENGTH)
    engine = Engine("brim-tiny", kv_tokens=1024, device="cpu", settings=settings)
    with served(engine, threads=True, model_name="brim-tiny") as found:
        yield found


def typed(lines: list[str], options: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return run(["chat", *options])


def test_a_conversation_rolls_and_says_so(
    tiny: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [
        "My name is Ada.",
        "What is my name?",
        *["What is 3 plus 4?"] * 5,
        "/undo",
        "/retry",
        "/usage",
        "/quit",
        "x",
    ]
    assert typed(turns, ["--url", tiny.url, "--max-tokens", "16"], monkeypatch) == 0
    found = capsys.readouterr()
    assert "Ada" in found.out.splitlines()[1]
    assert "turns (" in found.err
    assert "were dropped to make room" in found.err
    assert "2 turns taken back" in found.err
    assert tiny.is_empty()


def test_each_reply_is_a_line_for_programs(
    tiny: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["What is 3 plus 4?", "x " * 2 * LENGTH, "What is 3 plus 4?"]
    assert typed(lines, ["--url", tiny.url, "--json", "--max-tokens", "16"], monkeypatch) == 0
    first, refused, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["finish_reason"] == last["finish_reason"] == "stop"
    assert first["text"] == last["text"]
    assert last["prompt_tokens"] > first["prompt_tokens"], "the refused turn left no trace"
    assert "the server refused it (400)" in refused["error"]


def test_a_server_that_does_not_roll_gets_the_whole_conversation() -> None:
    bodies: list[dict[str, Any]] = []
    stream = b'data: {"choices": [{"delta": {"content": "Yes."}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    refusal = b'{"error": {"message": "unknown field truncation"}}'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        bodies.append(json.loads(await reader.readexactly(length)))
        status, body = (b"400 Bad", refusal) if "truncation" in bodies[-1] else (b"200 OK", stream)
        writer.write(b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))
        await writer.drain()
        writer.close()

    async def scenario() -> RemoteConversation:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            client = Client(Address("127.0.0.1", server.sockets[0].getsockname()[1]))
            chat = RemoteConversation(client, {"model": "m", "seed": 7}, system="Be brief.", rolls=True)
            assert (await chat.send("One?")).text == "Yes."
            await chat.send("Two?")
            await chat.retry()
            return chat

    chat = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert ["truncation" in body for body in bodies] == [True, False, False, False]
    assert [body["seed"] for body in bodies] == [7, 7, 7, 8], "another answer needs another seed"
    assert bodies[-1]["messages"] == bodies[-2]["messages"]
    assert [turn["content"] for turn in bodies[-1]["messages"]] == ["Be brief.", "One?", "Yes.", "Two?"]
    assert [turn["role"] for turn in chat.turns] == ["user", "assistant", "user", "assistant"]


def test_an_answer_that_is_stopped_is_kept(tiny: Served) -> None:
    async def scenario() -> list[dict[str, Any]]:
        chat = RemoteConversation(Client(parse_url(tiny.url)), {"ignore_eos": True, "max_tokens": 80}, rolls=False)
        begun = asyncio.Event()
        answering = asyncio.create_task(chat.send("Count from one to five.", show=lambda piece: begun.set()))
        await begun.wait()
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        return chat.turns

    turns = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    assert turns[1]["content"]
    assert tiny.is_empty()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--url http://127.0.0.1:9", "connection refused"),
        ("--url URL other-model", "model 'other-model' is not on"),
        ("--url URL --rolling-threshold 9", "rolling-threshold: with --url the server decides"),
    ],
)
def test_bad_options_get_one_line(
    options: str, said: str, tiny: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed([], options.replace("URL", tiny.url).split(), monkeypatch) == 2
    assert said in capsys.readouterr().err


def test_nothing_can_be_taken_back_from_nothing() -> None:
    chat = RemoteConversation(Client(Address("localhost", 1)), {}, rolls=False)
    with pytest.raises(InvalidRequest):
        chat.undo()
