"""Does the HTTP client of `brim bench` earn its place? Its CPU time for a streamed token beside that of httpx.

A server in a process of its own streams events that look like a chat's, a step of all streams every few milliseconds.
Each client reads the same streams, parses each event and counts it. A load generator that takes long for a token
measures itself: at 30,000 tokens/s, 33 µs for a token are one core.

    python benchmarks/http_clients.py [--streams 128] [--tokens 200] [--step-ms 8] [--rounds 5] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
from stamp import stamp

from brim.client.address import parse_url
from brim.client.client import Client
from brim.client.events import Events

EVENT = {
    "id": "chatcmpl-0",
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"content": " word"}}],
}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def serve(tokens: int, step_seconds: float, told: Connection) -> None:
    data = b"data: " + json.dumps(EVENT).encode() + b"\n\n"
    chunk = b"%x\r\n%s\r\n" % (len(data), data)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(HEAD)
                for _ in range(tokens):
                    writer.write(chunk)
                    await writer.drain()
                    await asyncio.sleep(step_seconds)  # an event is sent by itself, as a token is
                writer.write(b"0\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def with_brim(port: int, streams: int) -> int:
    client, counted = Client(parse_url(f"http://127.0.0.1:{port}"), None), 0

    def take(data: bytes) -> None:
        nonlocal counted
        counted += bool(json.loads(data)["choices"])

    await asyncio.gather(*(client.stream("/v1/chat/completions", {}, Events(take).feed) for _ in range(streams)))
    client.close()
    return counted


async def with_httpx(port: int, streams: int) -> int:
    counted = 0

    async def one(client: httpx.AsyncClient) -> None:
        nonlocal counted
        async with client.stream("POST", "/v1/chat/completions", json={}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    counted += bool(json.loads(line[6:])["choices"])

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=60) as client:
        await asyncio.gather(*(one(client) for _ in range(streams)))
    return counted


CLIENTS: dict[str, Callable[[int, int], Awaitable[int]]] = {"brim": with_brim, "httpx": with_httpx}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    told, child = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process
    server = process(target=serve, args=(options.tokens, options.step_ms / 1000, child), daemon=True)
    server.start()
    port = told.recv()
    rounds: dict[str, list[float]] = {name: [] for name in CLIENTS}
    for _ in range(options.rounds):
        for name, read in CLIENTS.items():
            began = time.process_time()
            counted = asyncio.run(_counted(read, port, options.streams))
            assert counted == options.streams * options.tokens, (name, counted)
            rounds[name].append((time.process_time() - began) / counted * 1e6)
    server.terminate()
    for name, micros in rounds.items():
        spread = f"({min(micros):.1f} to {max(micros):.1f})"
        print(f"{name:>6}  {statistics.median(micros):6.1f} µs of CPU for a token {spread}")
    if options.out:
        figures = {"streams": options.streams, "tokens": options.tokens, "step_ms": options.step_ms}
        figures |= {"microseconds_per_token": rounds}
        options.out.write_text(json.dumps({**stamp(), **figures}, indent=1) + "\n")


async def _counted(read: Callable[[int, int], Awaitable[int]], port: int, streams: int) -> int:
    return await read(port, streams)


if __name__ == "__main__":
    main()
