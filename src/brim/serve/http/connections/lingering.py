"""Closing a connection so that the client can read what it was told last.

A socket that is closed while its client still sends answers with a reset, which also takes back what the client has not
read yet. So the sending side is closed first, and what still comes is read and thrown away: for a while, not for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from brim.units import MIB

_SILENT_SECONDS = 2.0  # nothing has come for so long: nothing will
_MOST_SECONDS = 30.0
_MOST_BYTES = 64 * MIB


class LingeringTransport(asyncio.Transport):
    """A transport whose `close` waits for a client that still sends; `sends` knows whether it may."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop, sends: Callable[[], bool]) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._sends = sends
        self._began: float | None = None  # to linger
        self._discarded = 0
        self._looked_at = 0  # bytes that had been discarded then
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lingers(self) -> bool:
        return self._began is not None

    def close(self) -> None:
        if self.is_closing():
            return
        if not self._sends():
            self._inner.close()
            return
        try:
            self._inner.write_eof()
        except OSError:  # the client has gone meanwhile
            self._inner.abort()
            return
        self._began = self._loop.time()
        self._inner.resume_reading()
        self._timer = self._loop.call_later(_SILENT_SECONDS, self._look)

    def discard(self, size: int) -> None:
        """So much came after the end."""
        self._discarded += size
        if self._discarded > _MOST_BYTES:
            self.abort()

    def _look(self) -> None:
        assert self._began is not None
        if self._discarded == self._looked_at or self._loop.time() > self._began + _MOST_SECONDS:
            self.abort()
            return
        self._looked_at = self._discarded
        self._timer = self._loop.call_later(_SILENT_SECONDS, self._look)

    def lost(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        self._inner.abort()

    def is_closing(self) -> bool:
        return self.lingers or self._inner.is_closing()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self.lingers:
            self._inner.write(data)

    def pause_reading(self) -> None:
        if not self.lingers:
            self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)
