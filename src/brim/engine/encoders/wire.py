"""Messages between an engine and an encoder: JSON objects, each with its length before it, over a socket pair.

Nothing that is received is executed: there is no pickle. Tensors do not pass here; they lie in shared memory
(`areas`), and messages say where.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 24
_AT_ONCE = 1 << 16

Message = dict[str, Any]


class WireClosed(Exception):
    """The other process has gone, or what it sent is no message."""


class Wire:
    """One end. One thread may send while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        body = json.dumps(message).encode()
        try:
            self._connection.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise WireClosed(str(error)) from error

    def receive(self) -> Message:
        """The next message, waited for."""
        while (message := self._taken()) is None:
            self._read()
        return message

    def arrived(self) -> Iterator[Message]:
        """Messages that are here, without waiting.

        Where the other process has gone, its last messages come first: only a look that finds none of them raises.
        """
        found = False
        while True:
            while (message := self._taken()) is not None:
                found = True
                yield message
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except WireClosed:
                if found:
                    return
                raise

    def close(self) -> None:
        self._connection.close()

    def _read(self, flags: int = 0) -> None:
        try:
            some = self._connection.recv(_AT_ONCE, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise WireClosed(str(error)) from error
        if not some:
            raise WireClosed("the other process has closed the connection")
        self._received += some

    def _taken(self) -> Message | None:
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > _LONGEST:
            raise WireClosed(f"a message of {length} bytes")
        end = _LENGTH.size + length
        if len(self._received) < end:
            return None
        body = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        try:
            message = json.loads(body)
        except ValueError as error:
            raise WireClosed(f"a message that is no JSON: {error}") from error
        if not isinstance(message, dict):
            raise WireClosed("a message that is no object")
        return message
