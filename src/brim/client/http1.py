"""HTTP/1.1 as a client reads it: bytes in as they arrive, a head and pieces of a body out.

Nothing waits here and no task is woken for a piece: what a piece is for is called at once, so that a streamed token
costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_MOST_HEAD_BYTES = 64 << 10
_NO_BODY = (204, 304)
Take = Callable[[bytes], None]


class BadResponse(Exception):
    """What came is not HTTP."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The beginning of a response; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


def request_bytes(method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """A whole request."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class ResponseReader:
    """One response. `begun` gets its head and answers who takes the body."""

    def __init__(self, begun: Callable[[ResponseHead], Take]) -> None:
        self._begun = begun
        self._take: Take = _nobody
        self._waiting = b""
        self._read = self._read_head
        self._left = 0  # bytes of the chunk, or of the body
        self.head: ResponseHead | None = None
        self.done = False

    def feed(self, data: bytes) -> None:
        self._waiting = self._waiting + data if self._waiting else data
        while self._waiting and not self.done and self._read():
            pass

    def ended(self) -> bool:
        """The connection is closed. Whether the response was whole: one without a length ends here."""
        if self.head is not None and self._read == self._read_rest:
            self.done = True
        return self.done

    def _read_head(self) -> bool:
        end = self._waiting.find(b"\r\n\r\n")
        if end < 0:
            if len(self._waiting) > _MOST_HEAD_BYTES:
                raise BadResponse(f"its head is longer than {_MOST_HEAD_BYTES} bytes")
            return False
        head = _parse_head(self._waiting[:end])
        self._waiting = self._waiting[end + 4 :]
        if 100 <= head.status < 200:
            return True  # the real one follows
        self.head, self._take = head, self._begun(head)
        self._choose_body(head)
        return True

    def _choose_body(self, head: ResponseHead) -> None:
        length = head.headers.get("content-length")
        if "chunked" in head.headers.get("transfer-encoding", "").lower():
            self._read = self._read_chunk_size
        elif length is not None and not length.isdecimal():
            raise BadResponse(f"its content-length is {length!r:.40}")
        elif length is not None or head.status in _NO_BODY:
            self._left = int(length or 0)
            self._read = self._read_counted
            self.done = not self._left
        else:
            self._read = self._read_rest

    def _read_chunk_size(self) -> bool:
        end = self._waiting.find(b"\r\n")
        if end < 0:
            return False
        size = self._waiting[:end].partition(b";")[0].strip()
        try:
            self._left = int(size if size.isalnum() else b"", 16)  # without signs and underscores
        except ValueError:
            raise BadResponse(f"the size of a chunk is {self._waiting[:20]!r}") from None
        self._waiting = self._waiting[end + 2 :]
        self._read = self._read_chunk if self._left else self._read_trailer
        return True

    def _read_chunk(self) -> bool:
        """A chunk, or what there is of it; whole chunks are the usual case."""
        left, waiting = self._left, self._waiting
        if len(waiting) >= left + 2:
            self._waiting = waiting[left + 2 :]
            self._read = self._read_chunk_size
            self._take(waiting[:left])
            return True
        if len(waiting) >= left:
            return False  # the line end behind it is on its way
        self._left, self._waiting = left - len(waiting), b""
        self._take(waiting)
        return False

    def _read_trailer(self) -> bool:
        end = self._waiting.find(b"\r\n")
        if end < 0:
            return False
        self.done = end == 0
        self._waiting = self._waiting[end + 2 :]
        return True

    def _read_counted(self) -> bool:
        piece, self._waiting = self._waiting[: self._left], self._waiting[self._left :]
        self._left -= len(piece)
        self._take(piece)
        self.done = not self._left
        return True

    def _read_rest(self) -> bool:
        piece, self._waiting = self._waiting, b""
        self._take(piece)
        return False


def _parse_head(text: bytes) -> ResponseHead:
    first, *lines = text.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdecimal():
        raise BadResponse(f"it begins with {first!r:.60}")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return ResponseHead(int(status), headers if version != "HTTP/1.0" else {"connection": "close", **headers})


def _nobody(_: bytes) -> None:
    """A body that nobody takes."""
