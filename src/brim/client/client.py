"""Requests to one server, any number at once, over connections that are used again.

In: an address, a key, paths and JSON. Out: responses, whole, or their bodies piece by piece as they arrive. What fails
on the way is a `ConnectionFailed` with the reason in a word. Made and used inside of one event loop.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from brim.client.address import Address
from brim.client.http1 import BadResponse, ResponseHead, ResponseReader, Take, request_bytes
from brim.errors import DeviceError

CONNECT_SECONDS = 10.0


class ConnectionFailed(DeviceError):
    """No whole response: `kind` is refused, unreachable, lost, timeout or not_http."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Its body; None where that is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def problem(self) -> str:
        """What the server says is wrong, in one line."""
        found = self.json()
        error = found.get("error") if isinstance(found, dict) else None
        said = error.get("message") if isinstance(error, dict) else error
        text = said if isinstance(said, str) and said else self.body.decode(errors="replace")
        return " ".join(text.split())[:400] or f"status {self.status}"


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._done: asyncio.Future[None] | None = None
        self.usable = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.usable = True

    async def exchange(self, request: bytes, reader: ResponseReader) -> None:
        """Send a request and read its response to the end."""
        assert self._transport is not None
        self._reader, self._done = reader, asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._done
        finally:
            self._reader = None
        if reader.head is None or not reader.head.keeps_alive:
            self.close()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None or self._done is None or self._done.done():
            self.close()  # something that nobody asked for
            return
        try:
            reader.feed(data)
        except BadResponse as error:
            self._fail(ConnectionFailed("not_http", f"the answer is not HTTP: {error}"))
            self.close()
            return
        if reader.done and not self._done.done():  # the reader of the body may have left at its last piece
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if self._reader is None or self._done is None or self._done.done():
            return
        if error is None and self._reader.ended():
            self._done.set_result(None)
        else:
            self._fail(ConnectionFailed("lost", f"the connection was lost ({error or 'closed by the server'})"))

    def _fail(self, error: ConnectionFailed) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()


class Client:
    """All requests to one server."""

    def __init__(self, address: Address, key: str | None = None) -> None:
        self.address = address
        self._headers = {"host": address.authority, "accept": "*/*", "user-agent": "brim"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._idle: list[_Connection] = []
        self._secure = ssl.create_default_context() if address.secure else None

    async def get(self, path: str, *, seconds: float = CONNECT_SECONDS) -> Response:
        return await self._whole("GET", path, None, seconds)

    async def post(self, path: str, body: Mapping[str, Any], *, seconds: float | None = None) -> Response:
        return await self._whole("POST", path, json.dumps(body).encode(), seconds)

    async def stream(self, path: str, body: Mapping[str, Any], take: Take) -> Response:
        """Post it. The body of a good answer goes to `take` as it arrives, and is empty in what is returned."""
        return await self.send("POST", path, json.dumps(body).encode(), take)

    async def send(self, method: str, path: str, body: bytes | None, take: Take | None = None) -> Response:
        """Any bytes, and their response; where `take` is given, a good response's body goes to it in pieces."""
        kept: list[bytes] = []

        def begun(head: ResponseHead) -> Take:
            return take if take is not None and head.status == 200 else kept.append

        headers = self._headers if body is None else {**self._headers, "content-type": "application/json"}
        request = request_bytes(method, self.address.base + path, headers, body)
        reader = ResponseReader(begun)
        await self._exchange(request, reader)
        assert reader.head is not None
        return Response(reader.head.status, reader.head.headers, b"".join(kept))

    async def _whole(self, method: str, path: str, body: bytes | None, seconds: float | None) -> Response:
        try:
            return await asyncio.wait_for(self.send(method, path, body), seconds)
        except TimeoutError:
            raise ConnectionFailed("timeout", f"{self.address}{path} has not answered in {seconds:g} s") from None

    async def _exchange(self, request: bytes, reader: ResponseReader) -> None:
        with self._borrowed() as used:
            if used is not None:
                try:
                    await used.exchange(request, reader)
                    return
                except ConnectionFailed:
                    if reader.head is not None:
                        raise  # otherwise the server has closed it since: another one is tried
        connection = await self._connect()
        with self._kept(connection):
            await connection.exchange(request, reader)

    @contextmanager
    def _borrowed(self) -> Iterator[_Connection | None]:
        """A connection that was used before, where one is left."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                with self._kept(connection):
                    yield connection
                return
        yield None

    @contextmanager
    def _kept(self, connection: _Connection) -> Iterator[None]:
        """For another request afterwards; one that was left in the middle of a response is closed."""
        try:
            yield
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)

    async def _connect(self) -> _Connection:
        address, loop = self.address, asyncio.get_running_loop()
        connecting = loop.create_connection(_Connection, address.host, address.port, ssl=self._secure)
        try:
            _, found = await asyncio.wait_for(connecting, CONNECT_SECONDS)
        except TimeoutError:
            raise ConnectionFailed("timeout", f"{address}: no connection in {CONNECT_SECONDS:g} s") from None
        except ConnectionRefusedError:
            raise ConnectionFailed("refused", f"{address}: connection refused; is the server running?") from None
        except (OSError, ssl.SSLError) as error:
            said = error.strerror or error
            raise ConnectionFailed("unreachable", f"{address}: cannot be reached ({said})") from None
        return found

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()
