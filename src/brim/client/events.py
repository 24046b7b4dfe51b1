"""Server-sent events: pieces of a body in, the data of whole events out."""

from __future__ import annotations

from collections.abc import Callable

END = b"[DONE]"


class Events:
    """Calls `take` with the data of each event; an event of several lines of data is one."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._waiting = b""
        self.ended = False  # the server has said so

    def feed(self, piece: bytes) -> None:
        whole = self._waiting + piece if self._waiting else piece
        if b"\r" in whole:
            whole = whole.replace(b"\r\n", b"\n")
        *events, self._waiting = whole.split(b"\n\n")
        for event in events:
            self._one(event)

    def _one(self, event: bytes) -> None:
        if event.startswith(b"data: ") and b"\n" not in event:  # the usual case
            data = event[6:]
        else:
            lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
            data = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
        if data == END:
            self.ended = True
        elif data:
            self._take(data)
