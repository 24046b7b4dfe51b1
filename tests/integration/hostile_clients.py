"""Clients that mean harm, and a canary among them. On loopback only, bounded in number and in time.

Each kind speaks over sockets of its own, since no client library sends what it sends. It says how each attempt ended:
the status that it got, `closed` (the server hung up without a word), `left` (it went away itself, as it wanted to), or
`unanswered` (nothing came in time).
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

CHAT = "/v1/chat/completions"
CANARY_KEY, HOSTILE_KEY, FLOOD_KEY = KEYS = ("canary-key", "hostile-key", "flood-key")
ANSWER_SECONDS = 30.0  # in which everything that can be answered must be
PATIENCE_SECONDS = 6.0  # for which slow clients go on
CANARY_SECONDS = 0.5  # between two of its questions
_RESET = struct.pack("ii", 1, 0)  # a socket that is closed so sends a reset, and not what is left


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is, and the key of the client."""

    port: int
    key: str
    model: str
    host: str = "127.0.0.1"

    def head(self, *lines: str, path: str = CHAT) -> bytes:
        first = (f"POST {path} HTTP/1.1", f"Host: {self.host}", f"Authorization: Bearer {self.key}")
        return "\r\n".join((*first, "Content-Type: application/json", *lines)).encode() + b"\r\n\r\n"

    def request(self, body: bytes) -> bytes:
        return self.head(f"Content-Length: {len(body)}") + body

    def chat(self, **fields: Any) -> bytes:
        asked = {"model": self.model, "messages": [{"role": "user", "content": "Say something."}], **fields}
        return self.request(json.dumps(asked).encode())


@dataclass(slots=True)
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self, seconds: float = ANSWER_SECONDS) -> str:
        """Of the next response, whose body is read too where its length is known."""
        try:
            return await asyncio.wait_for(self._status(), seconds)
        except TimeoutError:
            return "unanswered"
        except (ConnectionError, asyncio.IncompleteReadError):
            return "closed"

    async def _status(self) -> str:
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "content-length" in headers:
            await self.reader.readexactly(int(headers["content-length"]))
        code = first.split()[1]
        return f"{code} without Retry-After" if code in ("429", "503") and "retry-after" not in headers else code


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Connection]:
    """A connection, which ends without a goodbye."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


# -- the kinds -----------------------------------------------------------------------------------------------------


async def slow_headers(target: Target, numbers: random.Random) -> str:
    """A header that never ends, some bytes at a time."""
    async with connected(target) as found:
        await found.send(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        return await _trickle(found, b"x")


async def slow_body(target: Target, numbers: random.Random) -> str:
    async with connected(target) as found:
        await found.send(target.head("Content-Length: 100000") + b'{"messages": "')
        return await _trickle(found, b"x")


async def _trickle(found: Connection, data: bytes) -> str:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        await found.send(data)
        status = await found.status(0.2)
        if status != "unanswered":
            return status
    return "left"


async def silent(target: Target, numbers: random.Random) -> str:
    """A connection over which nothing comes."""
    async with connected(target) as found:
        status = await found.status(numbers.uniform(1.0, PATIENCE_SECONDS))
        return "left" if status == "unanswered" else status


async def never_reads(target: Target, numbers: random.Random) -> str:
    """Asks for a stream, and takes none of it."""
    async with connected(target) as found:
        found.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await found.send(target.chat(stream=True, max_tokens=64, n=2))
        await asyncio.sleep(numbers.uniform(0.5, 3.0))
        return "left"


async def leaves_in_the_middle(target: Target, numbers: random.Random) -> str:
    """Reads the beginning of a stream, and is gone."""
    async with connected(target) as found:
        await found.send(target.chat(stream=True, max_tokens=64))
        status = await found.status()
        if status == "200":
            await asyncio.wait_for(found.reader.read(numbers.randint(1, 400)), ANSWER_SECONDS)
            return "left"
        return status


async def oversized(target: Target, numbers: random.Random) -> str:
    """A body that is larger than the server takes, or says that it is."""
    async with connected(target) as found:
        if numbers.random() < 0.5:
            await found.send(target.head("Content-Length: 999999999999"))
            return await found.status()
        await found.send(target.head("Content-Length: 20971520"))
        for _ in range(20):
            await found.send(b"x" * (1 << 20))
        return await found.status()


_HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_SMUGGLED = (
    (("Content-Length: {length}", "Transfer-Encoding: chunked"), b"0\r\n\r\n" + _HIDDEN),
    (("Transfer-Encoding: chunked", "Content-Length: 4"), b"2\r\n{}\r\n0\r\n\r\n" + _HIDDEN),
    (("Content-Length: 2", "Content-Length: {length}"), b"{}" + _HIDDEN),
    (("Transfer-Encoding: xchunked",), b"0\r\n\r\n" + _HIDDEN),
    (("Content-Length: +2",), b"{}" + _HIDDEN),
    (("Content-Length : 2",), b"{}" + _HIDDEN),
)


async def smuggling(target: Target, numbers: random.Random) -> str:
    """Two lengths for one body, with another request in what one of them leaves over.

    The server may refuse, or answer and close; a second answer on the connection is what a smuggler wants.
    """
    lines, body = numbers.choice(_SMUGGLED)
    async with connected(target) as found:
        await found.send(target.head(*(line.format(length=len(body)) for line in lines)) + body)
        first = await found.status()
        if first in ("closed", "unanswered"):
            return first
        second = await found.status(1.0)
        return first if second == "closed" else f"{first} then {second}"


async def bare_line_feeds(target: Target, numbers: random.Random) -> str:
    async with connected(target) as found:
        await found.send(target.chat(max_tokens=1).replace(b"\r\n", b"\n"))
        return await found.status()


async def many_headers(target: Target, numbers: random.Random) -> str:
    async with connected(target) as found:
        first, rest = target.chat(max_tokens=1).split(b"\r\n", 1)
        await found.send(first + b"\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(10_000)) + rest)
        return await found.status()


async def many_messages(target: Target, numbers: random.Random) -> str:
    async with connected(target) as found:
        await found.send(_many_messages(target))
        return await found.status()


@cache
def _many_messages(target: Target) -> bytes:
    roles = ("user", "assistant")
    return target.chat(messages=[{"role": roles[number % 2], "content": "x"} for number in range(50_000)])


async def bad_schemas(target: Target, numbers: random.Random) -> str:
    """Schemas that are wrong, endless, or large."""
    schema: dict[str, Any] = {"type": "object"}
    way = numbers.randrange(4)
    if way == 0:
        schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    elif way == 1:
        for _ in range(100):
            schema = {"type": "object", "properties": {"x": schema, "y": {"type": "string"}}}
    elif way == 2:
        schema = {"type": "string", "pattern": "(a{1,900}){1,900}" + "b" * numbers.randint(1, 50)}
    else:
        names = [f"{numbers.randrange(1 << 30)}" for _ in range(2_000)]
        schema = {"type": "object", "properties": {name: {"enum": names[:50]} for name in names}, "required": names}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with connected(target) as found:
        await found.send(target.chat(response_format=form, max_tokens=4))
        return await found.status()


async def eight_answers(target: Target, numbers: random.Random) -> str:
    """More answers than the server has places, before everybody else if it could."""
    async with connected(target) as found:
        await found.send(target.chat(n=8, max_tokens=8, temperature=1.0, priority=1000))
        status = await found.status()
        return "left" if status == "unanswered" else status  # what it waits for is its own flood


async def garbage(target: Target, numbers: random.Random) -> str:
    async with connected(target) as found:
        data = numbers.randbytes(numbers.randint(1, 4000))
        try:
            await found.send(data if numbers.random() < 0.5 else target.request(data))
        except ConnectionError:
            return "closed"
        status = await found.status(2.0)
        return "left" if status == "unanswered" else status  # it may look like the beginning of a request


Kind = Callable[[Target, random.Random], Awaitable[str]]
REFUSED = frozenset({"400", "408", "411", "413", "414", "417", "422", "431", "501", "closed"})
BUSY = frozenset({"429", "503"})  # with Retry-After


@dataclass(frozen=True, slots=True)
class Attack:
    """A kind of client, how many of it there are at once, how their attempts may end, and with which key they come."""

    kind: Kind
    clients: int
    allowed: frozenset[str]
    key: str = HOSTILE_KEY

    @property
    def name(self) -> str:
        return self.kind.__name__


ATTACKS = (
    Attack(slow_headers, 8, REFUSED | BUSY | {"left"}),
    Attack(slow_body, 8, REFUSED | BUSY | {"left"}),
    Attack(silent, 8, REFUSED | BUSY | {"left"}),
    Attack(never_reads, 4, REFUSED | BUSY | {"left"}),
    Attack(leaves_in_the_middle, 4, BUSY | {"left"}),
    Attack(oversized, 2, REFUSED | BUSY),
    Attack(smuggling, 2, REFUSED),
    Attack(bare_line_feeds, 1, REFUSED),
    Attack(many_headers, 1, REFUSED),
    Attack(many_messages, 2, REFUSED | BUSY),
    Attack(bad_schemas, 4, REFUSED | BUSY | {"200"}),
    Attack(eight_answers, 40, BUSY | {"200", "left"}, FLOOD_KEY),
    Attack(garbage, 2, REFUSED | BUSY | {"401", "404", "405", "415", "left"}),
)


@dataclass(slots=True)
class Canary:
    """Asks the same question again and again, and knows the answer."""

    target: Target
    answer: str = ""
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    async def ask(self) -> str:
        """Its answer, or what came instead."""
        question = [{"role": "user", "content": "What is the capital of France?"}]
        body = {"model": self.target.model, "messages": question, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        async with connected(self.target) as found:
            await found.send(self.target.request(json.dumps(body).encode()))
            head = (await found.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length:")[2].split()[0])
            said = await found.reader.readexactly(length)
        if " 200 " not in head.splitlines()[0]:
            return f"{head.splitlines()[0]} {said.decode(errors='replace')[:200]}"
        return str(json.loads(said)["choices"][0]["message"]["content"])

    async def look(self) -> None:
        """Ask once, and note how long that took and whether it was wrong."""
        began = time.monotonic()
        try:
            said = await asyncio.wait_for(self.ask(), ANSWER_SECONDS)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError) as error:
            said = type(error).__name__
        self.seconds.append(time.monotonic() - began)
        if said != self.answer:
            self.wrong.append(said)

    async def keep_looking(self, until: float) -> None:
        """By the clock: a slow answer does not keep it from asking again."""
        asking: list[asyncio.Task[None]] = []
        while time.monotonic() < until:
            asking.append(asyncio.create_task(self.look()))
            await asyncio.sleep(CANARY_SECONDS)
        await asyncio.gather(*asking)


def besieged(target: Target, attacks: tuple[Attack, ...], seconds: float) -> dict[str, Counter[str]]:
    """All kinds at once, each client again and again; how often each kind's attempts ended how.

    For a process of its own: what these clients do must not take the canary's time.
    """
    return asyncio.run(_besiege(target, attacks, time.monotonic() + seconds))


async def _besiege(target: Target, attacks: tuple[Attack, ...], until: float) -> dict[str, Counter[str]]:
    ended: dict[str, Counter[str]] = {attack.name: Counter() for attack in attacks}

    async def one(attack: Attack, number: int) -> None:
        numbers = random.Random(f"{attack.name} {number}")
        while time.monotonic() < until:
            try:
                end = await attack.kind(replace(target, key=attack.key), numbers)
            except ConnectionError:
                end = "closed"
            ended[attack.name][end] += 1
            await asyncio.sleep(numbers.uniform(0.05, 0.3))

    await asyncio.gather(*(one(attack, number) for attack in attacks for number in range(attack.clients)))
    return ended


def unexpected(attacks: tuple[Attack, ...], ended: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """Ends that no attempt of a kind may have."""
    found = {
        attack.name: {end: count for end, count in ended[attack.name].items() if end not in attack.allowed}
        for attack in attacks
    }
    return {name: ends for name, ends in found.items() if ends}
