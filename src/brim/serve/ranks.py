"""The other ranks of a model that is split over several devices: started here, and told what the first one does.

The server is rank 0. The others are processes of the same command: they load, fit and build beside it, and then do with
their engines what it does with its own, in the same order (`follow`). Orders come through their standard input. It
closes when the server ends, however that ends, and they end with it.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from brim.engine.front.answers import Update
from brim.errors import BrimError, DeviceError

if TYPE_CHECKING:
    from brim.engine.engine import Engine
    from brim.engine.front.validation import GenerationRequest

_LEAVE_SECONDS = 20.0
_LOOK_SECONDS = 1.0  # how often a rank looks whether the server is still there
Order = tuple[str, tuple[Any, ...], dict[str, Any]]  # a method of the engine, and what it is called with


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun would set."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Ordered(Protocol):
    """All ranks but the first, wherever they are."""

    def tell(self, name: str, *arguments: Any, **options: Any) -> None:
        """Have all of them do it, in the order of the calls."""
        ...


class Followers:
    """The processes of all ranks but the first, from `start` to `close`."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closing = False

    def start(
        self, command: Sequence[str], environments: Sequence[Mapping[str, str]], lost: Callable[[str], object]
    ) -> None:
        """One process for each environment; `lost` is called if one of them ends on its own."""
        for environment in environments:
            process = subprocess.Popen(list(command), stdin=subprocess.PIPE, env=dict(environment))
            self._processes.append(process)
            threading.Thread(target=self._watch, args=(process, lost), daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes], lost: Callable[[str], object]) -> None:
        code = process.wait()
        if not self._closing:
            lost(f"rank {self._processes.index(process) + 1} has ended (exit code {code})")

    def tell(self, name: str, *arguments: Any, **options: Any) -> None:
        """Have all of them do it, each with its own engine."""
        written = pickle.dumps((name, arguments, options))
        try:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(written)
                process.stdin.flush()
        except OSError as error:
            raise DeviceError("another rank has ended") from error

    def close(self) -> None:
        """Let them end; those that do not are ended."""
        self._closing = True
        for process in self._processes:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


class LeadingEngine:
    """The engine of the first rank: what changes it is told to the others first. All else is the engine itself."""

    def __init__(self, engine: Engine, followers: Ordered) -> None:
        self._engine = engine
        self._followers = followers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, *arguments: Any, **options: Any) -> str:
        self._followers.tell("submit", *arguments, **options)
        return self._engine.submit(*arguments, **options)

    def submit_request(self, given: GenerationRequest) -> str:
        self._followers.tell("submit_request", given)
        return self._engine.submit_request(given)

    def cancel(self, request_id: str) -> bool:
        self._followers.tell("cancel", request_id)
        return self._engine.cancel(request_id)

    def step(self) -> list[Update]:
        self._followers.tell("step")
        return self._engine.step()


def follow(engine: Engine, orders: BinaryIO) -> None:
    """Do what the first rank does, until it says nothing more."""
    while True:
        try:
            name, arguments, options = pickle.load(orders)
        except EOFError:
            return
        try:
            getattr(engine, name)(*arguments, **options)
        except BrimError:
            if name == "step":
                raise  # a request that is refused here is refused by the first rank too


def live_with_the_server() -> None:
    """An interrupt of the terminal reaches every rank, but the server decides what follows from it.

    A server that was killed closes its pipe, which nobody reads while ranks wait for each other: so it is watched too.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    server = os.getppid()

    def watch() -> None:
        while os.getppid() == server:
            time.sleep(_LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
