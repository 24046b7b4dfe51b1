"""One client's connection: uvicorn's own, with bounds on how many there are, what a head may be, and how long it takes.

uvicorn closes connections that are idle (`timeout_keep_alive`), and h11 bounds a head that is not complete. What they
do not know is here: heads that come slowly, clients that do not read, clients that connect and say nothing, and bodies
that nobody reads to their end. How long a body may take is known where it is read (`brim.serve.http.reading`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from brim.serve.http.connections.head import StrictParser
from brim.serve.http.connections.lingering import LingeringTransport
from brim.serve.http.reply import HttpReply, dumped
from brim.serve.lifecycle import HttpFigures
from brim.serve.problems import SERVER, Problem
from brim.serve.settings import ConnectionLimits

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send
    from uvicorn import Config
    from uvicorn.server import ServerState

_SETTLED_SECONDS = 1.0  # a connection that has waited for so long without a request may make room for another
_TOLD = 64  # connections beyond the bound that are told so; those beyond are closed without a word
_RETRY_SECONDS = 1


class OpenConnections:
    """All of a server. Where there are too many, the one that has waited longest without a request makes room."""

    def __init__(self, limits: ConnectionLimits, figures: HttpFigures) -> None:
        self.limits = limits
        self.figures = figures
        self._waiting: dict[Connection, float] = {}  # without a request, since when; the longest first

    def admit(self, connection: Connection) -> None:
        """One more."""
        self.figures.connections += 1
        count = self.figures.connections
        if count <= self.limits.connections or self._made_room(connection.loop.time()):
            return
        if count > self.limits.connections + _TOLD:
            self.figures.refused(503)
            connection.transport.abort()
        else:
            connection.app = self._full

    def _made_room(self, now: float) -> bool:
        longest = next(iter(self._waiting), None)
        if longest is None or now - self._waiting[longest] < _SETTLED_SECONDS:
            return False
        del self._waiting[longest]
        longest.transport.abort()
        return True

    def waits(self, connection: Connection) -> None:
        self._waiting.setdefault(connection, connection.loop.time())

    def works(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def lost(self, connection: Connection) -> None:
        self.figures.connections -= 1
        self.works(connection)

    async def _full(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.figures.refused(503)
        problem = Problem(
            503,
            f"there are {self.limits.connections} connections already; try again in {_RETRY_SECONDS} s",
            kind=SERVER,
            code="too_many_connections",
            retry_after=_RETRY_SECONDS,
        )
        await HttpReply(send, {"connection": "close"}).problem(problem)


class Connection(H11Protocol):
    transport: LingeringTransport
    conn: StrictParser

    def __init__(
        self,
        others: OpenConnections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = StrictParser(others.limits)
        self._others = others
        self._refused = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None

    # -- from the start to the end -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(LingeringTransport(transport, self.loop, self._client_sends))
        self._others.admit(self)
        self._others.waits(self)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.lost(self)
        self._stop_timing_head()
        self.resume_writing()
        self.transport.lost()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server ends."""
        if self.transport.lingers:
            self.transport.abort()
        else:
            super().shutdown()

    def _client_sends(self) -> bool:
        """Whether it may be in the middle of a request."""
        return self._refused or self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    # -- requests ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.transport.lingers:
            self.transport.discard(len(data))
            return
        super().data_received(data)
        self._look_at_head()

    def on_response_complete(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:  # nobody will read the rest
            self.transport.close()
        super().on_response_complete()
        self._look_at_head()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's name for it: what came is no request."""
        self._refuse(self.conn.problem or Problem(400, msg))

    def _refuse(self, problem: Problem) -> None:
        """An answer to what is no request, and the end."""
        self._refused = True
        self._others.figures.refused(problem.status)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:  # its body is none: nobody waits for the answer
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        body = dumped(problem.body)
        headers = [*problem.headers.items(), ("content-type", "application/json"), ("content-length", str(len(body)))]
        start = h11.Response(status_code=problem.status, headers=[*headers, ("connection", "close")])
        for event in (start, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    # -- time ----------------------------------------------------------------------------------------------------

    def _look_at_head(self) -> None:
        """A head that has begun must be whole in time."""
        if self.conn.their_state is h11.IDLE or self.transport.lingers:
            self._others.waits(self)
        else:
            self._others.works(self)
            self._stop_timing_head()
        if self._head_timer is None and not self.transport.is_closing() and self.conn.begun:
            self._time_head()

    def _time_head(self) -> None:
        self._head_timer = self.loop.call_later(self._others.limits.header_seconds, self._head_is_late)

    def _stop_timing_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.begun:
            seconds = self._others.limits.header_seconds
            self._refuse(Problem(408, f"the headers took longer than {seconds:g} s", code="request_timeout"))
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        if self._reading_timer is None:
            self._reading_timer = self.loop.call_later(self._others.limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None
        super().resume_writing()
