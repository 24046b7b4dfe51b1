"""A `brim serve` of the demo: a process of its own, from its start to its end."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from brim.client.address import parse_url
from brim.client.client import Client, ConnectionFailed
from brim.errors import DeviceError

_START_SECONDS, _END_SECONDS = 120, 60
_LOOK_SECONDS = 0.1


class DemoServer:
    """That process, and a client of it."""

    def __init__(self, options: str) -> None:
        self.command = f"serve {options} --port 0 --no-request-log --no-store"
        words = [sys.executable, "-m", "brim.cli.main", *shlex.split(self.command)]
        self._began = time.monotonic()
        self._process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)  # it says where it listens
        assert self._process.stderr is not None
        said = iter(self._process.stderr.readline, "")
        listening = next((line for line in said if "listening on" in line), "")
        if not listening:
            raise DeviceError(f"brim {self.command} did not start")
        self.url = listening.split("listening on ")[1].split(";")[0]
        threading.Thread(target=lambda: list(said), daemon=True).start()  # nobody reads the rest

    async def ready(self) -> float:
        """Wait until it answers, and show what it is doing; seconds since its start."""
        client, phase, until = self.client(), "", time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            found = await client.get("/health", seconds=_START_SECONDS)  # while it imports, it may be slow
            if found.status == 200:
                return time.monotonic() - self._began
            now = str(found.json().get("phase", ""))
            if now.partition(" ")[0] != phase.partition(" ")[0]:
                print(f"  /health: starting, {now}", flush=True)
            phase = now
            await asyncio.sleep(_LOOK_SECONDS)
        raise DeviceError(f"{self.url} was not ready within {_START_SECONDS} s")

    def client(self) -> Client:
        return Client(parse_url(self.url))

    async def tell(self, path: str) -> Any:
        """What one of its endpoints says."""
        found = await self.client().get(path)
        if found.status != 200:
            raise ConnectionFailed("unreachable", f"{self.url}{path}: {found.problem}")
        return found.json()

    def stop(self) -> int:
        """Drain, and its exit code."""
        self._process.terminate()
        return self._process.wait(_END_SECONDS)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def demo_server(options: str) -> Iterator[DemoServer]:
    """A server that ends with the block, whatever happens in it."""
    server = DemoServer(options)
    try:
        yield server
    finally:
        server.kill()
