"""A front end over replicas made by hand: retries, answers that break off, refusals, and what is asked of all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

pytest.importorskip("ray.serve")

from brim.ray import over_all
from brim.ray.front import make_front
from brim.ray.replica_facts import ReplicaFacts, ReplicaLost
from brim.ray.wire import Messages, Sending, Whole, answered
from brim.records.routing import RouteRefusal
from brim.serve.prepare.jobs import TokenizerSource
from brim.serve.settings import ServeSettings

BODY = {"messages": [{"role": "user", "content": "Hi."}]}


def start(status: int = 200, kind: bytes = b"application/json") -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]}


def body(content: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


@dataclass
class Fakes:
    """Replicas that answer by a script: a list of messages, an error, or a refusal, for each attempt."""

    scripts: list[list[Any]]
    wholes: list[Whole] = field(default_factory=list)
    sent: list[Sending] = field(default_factory=list)
    closed: int = 0

    async def stream(self, sending: Sending, scope: dict[str, Any], content: bytes) -> AsyncGenerator[Messages, None]:
        script = self.scripts[len(self.sent)]
        self.sent.append(sending)
        try:
            for step in script:
                if isinstance(step, RouteRefusal):
                    sending.refuse(step)
                    await asyncio.sleep(60)
                if step == "nobody":
                    await asyncio.sleep(60)
                if step == "slow":
                    sending.went_to = "replica"
                    await asyncio.sleep(0.5)
                    continue
                if isinstance(step, Exception):
                    sending.went_to = f"replica {len(self.sent)}"
                    raise step
                yield [step]
        finally:
            self.closed += 1

    async def every(self, scope: dict[str, Any], content: bytes) -> list[Whole]:
        return self.wholes

    async def facts(self) -> ReplicaFacts:
        return ReplicaFacts("tiny", 512, 16, 1000, TokenizerSource(None))


def ask(
    fakes: Fakes, method: str = "POST", path: str = "/v1/chat/completions", patience: float = 10.0
) -> httpx.Response:
    front = make_front({"tiny": fakes}, ServeSettings("tiny"), patience)

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=front)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, json=BODY if method == "POST" else None)

    return asyncio.run(asyncio.wait_for(asked(), 20))


LOST = ReplicaLost("ActorDiedError")
ANSWER = [start(), body(b'{"ok": 1}')]


def test_an_answer_is_passed_on() -> None:
    fakes = Fakes([ANSWER])
    found = ask(fakes)
    assert (found.status_code, found.json(), fakes.closed) == (200, {"ok": 1}, 1)


@pytest.mark.parametrize("first", [[LOST], [start(), LOST], [start(503), body(b"{}")]])
def test_what_has_sent_nothing_is_sent_elsewhere_once(first: list[Any]) -> None:
    fakes = Fakes([first, ANSWER])
    assert ask(fakes).json() == {"ok": 1}
    assert fakes.sent[0].asked.excluded == frozenset()
    if isinstance(first[-1], ReplicaLost):
        assert fakes.sent[1].asked.excluded == {"replica 1"}


def test_the_second_time_it_is_an_error() -> None:
    found = ask(Fakes([[LOST], [LOST]]))
    assert found.status_code == 503
    assert found.json()["error"]["code"] == "replica_lost"
    assert found.headers["retry-after"] == "5"


def test_a_second_replica_that_takes_nothing_says_so_itself() -> None:
    found = ask(Fakes([[start(503), body(b"{}")], [start(503), body(b'{"error": 2}')]]))
    assert (found.status_code, found.json()) == (503, {"error": 2})


def test_what_has_begun_ends_with_an_error_that_says_so() -> None:
    events = start(200, b"text/event-stream")
    fakes = Fakes([[events, body(b'data: {"a": 1}\n\n', more=True), LOST], ANSWER])
    found = ask(fakes)
    assert len(fakes.sent) == 1
    first, last, _ = found.text.split("\n\n")
    assert first == 'data: {"a": 1}'
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "replica_lost"
    assert "ask again" in error["message"]


def test_a_refusal_has_a_time_and_gives_the_request_up() -> None:
    fakes = Fakes([[RouteRefusal(7, "no replica can start it")]])
    found = ask(fakes)
    assert (found.status_code, found.headers["retry-after"]) == (429, "7")
    assert found.json()["error"]["code"] == "no_replica_in_time"
    assert fakes.closed == 1


def test_where_no_replica_is_there_nobody_waits_for_ever() -> None:
    fakes = Fakes([["nobody"]])
    found = ask(fakes, patience=0.2)
    assert (found.status_code, found.headers["retry-after"]) == (429, "5")
    assert fakes.closed == 1


def test_a_slow_answer_is_waited_for_once_a_replica_has_it() -> None:
    assert ask(Fakes([["slow", *ANSWER]]), patience=0.2).json() == {"ok": 1}


def whole(name: str, found: Any, status: int = 200) -> Whole:
    content = found if isinstance(found, bytes) else json.dumps(found).encode()
    return Whole(name, status, [], content)


def test_health_is_that_of_the_best_replica() -> None:
    assert over_all.health([])[0] == 503
    some = [whole("b", {"status": "draining"}, 503), whole("a", {"status": "degraded", "reason": "x"})]
    expected = {"status": "degraded", "reason": "x", "replicas": {"a": "degraded", "b": "draining"}}
    assert over_all.health(some) == (200, expected)
    assert ask(Fakes([], some), "GET", "/health").json() == expected
    for method in ("GET", "POST"):
        ping = ask(Fakes([], some), method, "/ping")
        assert (ping.status_code, ping.content) == (200, b"")


def test_the_load_is_that_of_all_replicas() -> None:
    some = [whole("a", {"server_load": 2}), whole("b", {"server_load": 3})]
    assert ask(Fakes([], some), "GET", "/load").json() == {"server_load": 5}


def test_metrics_are_told_apart_by_replica() -> None:
    text = b"# HELP brim_running x\n# TYPE brim_running gauge\nbrim_running 3.0\n"
    found = over_all.metrics([whole("b", text), whole("a", text)]).decode()
    assert [line for line in found.splitlines() if not line.startswith("#")] == [
        'brim_running{replica="a"} 3.0',
        'brim_running{replica="b"} 3.0',
    ]


def test_models_are_listed_once() -> None:
    one = {"data": [{"id": "tiny"}]}
    assert over_all.models([whole("a", one), whole("b", one)])["data"] == [{"id": "tiny"}]


def test_an_application_sees_that_its_client_has_gone() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["body"].decode())
        await send(start())
        await send(body(b"1", more=True))
        seen.append((await receive())["type"])

    async def leave() -> None:
        answer = answered(app, {"type": "http"}, b"asked")
        assert (await anext(answer))[0]["type"] == "http.response.start"
        await answer.aclose()

    asyncio.run(asyncio.wait_for(leave(), 20))
    assert seen == ["asked", "http.disconnect"]


def test_what_an_application_raises_is_raised() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("broken")

    async def read() -> list[Any]:
        return [one async for one in answered(app, {"type": "http"}, b"")]

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(read())
