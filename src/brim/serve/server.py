"""The process of `brim serve`: it listens at once, loads and fits in a thread, serves, drains and ends.

The first SIGTERM or SIGINT drains: new requests are refused, those inside are answered. The second one ends at once.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import cast

import uvicorn

from brim.errors import InvalidRequest
from brim.record.writer import RecordingWriter
from brim.records.progress import Progress
from brim.serve.http.connections.connection import Connection, OpenConnections
from brim.serve.http.connections.open_files import connections_allowed
from brim.serve.lifecycle import ServerLifecycle
from brim.serve.prepare.jobs import TokenizerSource
from brim.serve.prepare.worker import Tokenising
from brim.serve.service import Abandoned, Service, Starter
from brim.serve.settings import ServeSettings

_LEAVE_SECONDS = 10  # for a start that is abandoned to notice it


class _Http(uvicorn.Server):
    """Signals are the server's own business."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Server:
    """One server, from `run` to its end."""

    def __init__(
        self,
        settings: ServeSettings,
        starter: Starter,
        *,
        write_log: Callable[[str], object] | None = None,
        say: Callable[[str], object] = lambda line: None,
        progress: Progress = False,
        tokenising: Callable[[TokenizerSource], Tokenising] = Tokenising,
        recording: RecordingWriter | None = None,
        unrecorded: str = "",
    ) -> None:
        self._settings = settings
        self._say = say
        self._service = Service(
            settings,
            starter,
            write_log=write_log,
            say=say,
            progress=progress,
            tokenising=tokenising,
            recording=recording,
            unrecorded=unrecorded,
        )
        self._stopping = asyncio.Event()
        self._forced = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped_early = False

    @property
    def lifecycle(self) -> ServerLifecycle:
        return self._service.lifecycle

    def stop(self) -> None:
        """Drain and end; called again: end at once. From any thread; before `run`, it ends as soon as it begins."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._signalled)
        else:
            self._stopped_early = True

    def _signalled(self) -> None:
        if self._stopping.is_set():
            self._forced.set()
        self._stopping.set()
        self.lifecycle.draining = True

    async def run(self, listening: socket.socket, *, signals: bool = True) -> int:
        """Serve until it is stopped; the exit code: 1 where requests were cut off."""
        self._loop = asyncio.get_running_loop()
        if self._stopped_early:
            self._signalled()
        if signals:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._signalled)
        http = _Http(self._http_config())
        answering = asyncio.create_task(http.serve(sockets=[listening]))
        self._say(f"listening on {address(listening)}; /health says when it is ready")
        try:
            await self._until_started()
            await self._stopping.wait()
            cut_off = not await self._service.drained(self._forced.is_set)
        finally:
            http.should_exit, http.force_exit = True, self._forced.is_set()
            self._loop = None
            await self._service.close()
            await answering
        self._say("stopped, and some answers were cut off" if cut_off else "stopped")
        return int(cut_off)

    def _http_config(self) -> uvicorn.Config:
        limits = self._settings.connection_limits
        allowed = connections_allowed(limits.connections)
        if allowed < limits.connections:
            self._say(
                f"at most {allowed} connections, not {limits.connections}: raise the limit of open files (ulimit -n)"
            )
        connections = OpenConnections(replace(limits, connections=allowed), self.lifecycle.http)
        return uvicorn.Config(
            self._service.app,
            http=cast("type[asyncio.Protocol]", partial(Connection, connections)),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="error",  # what clients do wrong is counted, and is no news
            server_header=False,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=1,
        )

    # -- start ---------------------------------------------------------------------------------------------------

    async def _until_started(self) -> None:
        """Started, or told to stop before that. What goes wrong is raised."""
        starting = asyncio.create_task(self._service.start(self._stopping.is_set))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            await asyncio.wait({starting}, timeout=_LEAVE_SECONDS)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        elif (error := starting.exception()) is not None and not isinstance(error, Abandoned):
            raise error


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; one line says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol said: asyncio sends small answers at once (TCP_NODELAY) on sockets that say they are TCP.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(2048)
    except OSError as error:
        found.close()
        raise InvalidRequest(
            f"host {host}, port {port}: cannot listen there ({error.strerror or error}); choose another --port, or 0 "
            "for any that is free"
        ) from None
    return found


def address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
