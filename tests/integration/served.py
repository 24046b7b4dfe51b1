"""A server in a thread, around an engine that is built already; and clients for it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from brim.engine.engine import Engine
from brim.engine.pooling.engine import PoolingEngine
from brim.ports import MemoryProbe
from brim.record.writer import RecordingWriter
from brim.records.fit import FitReport
from brim.records.progress import Told
from brim.serve.prepare.processes import processes
from brim.serve.prepare.worker import Tokenising
from brim.serve.server import Server, address, listen
from brim.serve.service import Loaded, LoadedPooling
from brim.serve.settings import ServeSettings
from tests.integration.streaming_clients import nothing_is_held

SECONDS = 60


@dataclass(frozen=True, slots=True)
class Built:
    """A start that has nothing left to do."""

    engine: Engine
    probe: MemoryProbe | None = None
    report: FitReport | None = None

    def load(self, told: Told) -> Loaded:
        return Loaded(self.engine, self.probe)

    def fit(self, loaded: Loaded, told: Told) -> FitReport | None:
        return self.report


@dataclass(frozen=True, slots=True)
class BuiltPooling:
    """The same for an engine that embeds or scores."""

    engine: PoolingEngine
    probe: MemoryProbe | None = None
    report: FitReport | None = None

    def load(self, told: Told) -> LoadedPooling:
        return LoadedPooling(self.engine, lambda told: self.report, self.probe)

    def fit(self, loaded: Loaded, told: Told) -> FitReport | None:
        raise AssertionError("it is fitted as it is loaded")


@dataclass(slots=True)
class Served:
    """A running server, seen from outside and from inside."""

    server: Server
    engine: Any
    url: str
    thread: threading.Thread
    key: str
    log: list[dict[str, Any]]
    ended: list[int] = field(default_factory=list)  # its exit code, when it has ended

    def client(self, **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=SECONDS, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body, **options) if body is not None else client.post(path, **options)

    def get(self, path: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path)

    def logged(self, response: httpx.Response) -> list[dict[str, Any]]:
        """The lines of the log about a request; there must be one soon."""

        def found() -> list[dict[str, Any]]:
            return [entry for entry in self.log if entry["id"] == response.headers["x-request-id"]]

        wait(found)
        return found()

    def is_empty(self) -> bool:
        """Wait until nobody is inside any more; nothing may be held then."""
        running = self.server.lifecycle.any_running
        assert running is not None
        wait(lambda: running.gate.inside == 0 and running.serving.in_flight == 0 and self.engine.idle)
        return isinstance(self.engine, PoolingEngine) or nothing_is_held(self.engine)


def wait(done: Any, seconds: float = SECONDS) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.01)


@contextmanager
def served(
    engine: Engine | Built | BuiltPooling,
    *,
    threads: bool = False,
    recording: RecordingWriter | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """The server until it is not needed any more, or was stopped.

    `threads`: tokens are made in this process, which saves a worker the import of torch.
    """
    built = engine if isinstance(engine, Built | BuiltPooling) else Built(engine)
    log: list[dict[str, Any]] = []
    chosen = ServeSettings(**{"model_name": "tiny", "port": 0, **settings})
    listening = listen(chosen.host, chosen.port)
    pool = partial(ThreadPoolExecutor, 1) if threads else processes
    server = Server(
        chosen,
        built,
        write_log=lambda line: log.append(json.loads(line)),
        tokenising=partial(Tokenising, new_pool=pool),
        recording=recording,
    )
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(asyncio.run(server.run(listening, signals=False))))
    found = Served(server, built.engine, address(listening), thread, (*chosen.api_keys, "")[0], log, ended)
    thread.start()
    try:
        wait(lambda: found.get("/health").status_code == 200)
        yield found
    finally:
        server.stop()
        server.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()


def events(response: httpx.Response) -> list[Any]:
    """All events of a stream; the last must be the end."""
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
