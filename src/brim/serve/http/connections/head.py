"""The head of a request (its first line and its headers), read more strictly than h11 does.

h11 takes a line that ends in a bare LF, headers folded over several lines, two equal Content-Length headers, and one
beside Transfer-Encoding. Servers and proxies read each of these in different ways, so where one request ends and the
next begins would be a matter of opinion: they are refused, as RFC 9112 allows (2.2, 5.2, 6.3).
"""

from __future__ import annotations

import re
from typing import Any

import h11

from brim.serve.problems import Problem
from brim.serve.settings import ConnectionLimits

_END = re.compile(rb"\n\r?\n")  # where h11 sees the end of a head
_MOST_SMALL_CHUNKS = 1024  # each takes as long to read as a large one
_SMALL_CHUNK = 256  # bytes


class StrictParser(h11.Connection):
    """The server's side of a connection; `problem` says why it was refused, where `next_event` raises."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self.problem: Problem | None = None
        self._limits = limits
        self._small_chunks = 0

    def next_event(self) -> Any:
        try:
            if self.their_state is h11.IDLE:
                self._check_head()
            event = super().next_event()
            if isinstance(event, h11.Data):
                self._check_chunk(event)
            return event
        except h11.RemoteProtocolError as error:
            self.problem = self.problem or _problem(error)
            raise

    @property
    def begun(self) -> bool:
        """Whether a part of a head has come, and nothing more."""
        return self.their_state is h11.IDLE and bool(self.trailing_data[0])

    def _check_head(self) -> None:
        self._small_chunks = 0
        received, _ = self.trailing_data
        end = _END.search(received)
        self.problem = None if end is None else head_problem(received[: end.end()], self._limits)
        if self.problem is not None:
            raise h11.RemoteProtocolError(self.problem.message, self.problem.status)

    def _check_chunk(self, event: h11.Data) -> None:
        self._small_chunks += event.chunk_start and event.chunk_end and len(event.data) < _SMALL_CHUNK
        if self._small_chunks > _MOST_SMALL_CHUNKS:
            self.problem = Problem(
                400, f"the body has more than {_MOST_SMALL_CHUNKS} chunks of a few bytes; send larger ones"
            )
            raise h11.RemoteProtocolError(self.problem.message)


def head_problem(head: bytes, limits: ConnectionLimits) -> Problem | None:
    """Why a head is refused, beyond what h11 refuses. It is whole, and ends with its empty line."""
    if len(head) > limits.header_bytes:
        return _too_large(f"{len(head):,} bytes, of at most {limits.header_bytes:,}")
    lines = head.split(b"\r\n")
    if any(b"\n" in line for line in lines):
        return Problem(400, "a line of the request's head ends without a carriage return; end each with CR LF")
    headers = lines[1:-2]
    if len(headers) > limits.headers:
        return _too_large(f"{len(headers):,} of them, of at most {limits.headers:,}")
    if any(header.startswith((b" ", b"\t")) for header in headers):
        return Problem(400, "a header goes on in a second line; write it in one")
    names = [header.partition(b":")[0].lower() for header in headers]
    lengths, encodings = names.count(b"content-length"), names.count(b"transfer-encoding")
    if lengths > 1 or (lengths and encodings):
        return Problem(
            400, "the length of the body is given twice; send one Content-Length, or Transfer-Encoding alone"
        )
    if encodings and lines[0].endswith(b"HTTP/1.0"):
        return Problem(400, "HTTP/1.0 has no Transfer-Encoding; send Content-Length, or speak HTTP/1.1")
    return None


def _too_large(said: str) -> Problem:
    return Problem(431, f"the headers are too large: {said}; send less", code="headers_too_large")


def _problem(error: h11.RemoteProtocolError) -> Problem:
    """What h11 has refused. Its message repeats what was sent, so it is not passed on."""
    match error.error_status_hint:
        case 431:
            return _too_large("more than this server keeps of what is not complete")
        case 501:
            return Problem(501, "only Transfer-Encoding: chunked is supported")
    return Problem(400, "this is no HTTP/1.1 request; speak HTTP, without TLS", code="invalid_http")
