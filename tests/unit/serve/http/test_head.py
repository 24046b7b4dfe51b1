"""Heads of requests that servers and proxies read in different ways, and those that are too large."""

from __future__ import annotations

import pytest

pytest.importorskip("h11")

import h11

from brim.serve.http.connections.head import StrictParser, head_problem
from brim.serve.settings import ConnectionLimits

LIMITS = ConnectionLimits(header_bytes=400, headers=5)


def head(*lines: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"POST /v1/completions HTTP/{version}", "Host: localhost", *lines, "", ""]).encode()


def events(received: bytes, parser: StrictParser) -> list[type]:
    """Kinds of what is in it, up to where more is needed."""
    found = []
    parser.receive_data(received)
    while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        found.append(type(event))
    return found


@pytest.mark.parametrize(
    "plain",
    [
        head(),
        head("Content-Length: 0"),
        head("Transfer-Encoding: chunked") + b"2\r\nab\r\n0\r\n\r\n",
        head("X: a\tb", "Y:", "Z: a: b"),
        head(*["X: y"] * 4),
        head("X: " + "y" * (400 - len(head("X: ")))),
    ],
)
def test_a_plain_head_is_read(plain: bytes) -> None:
    found = events(plain, StrictParser(LIMITS))
    assert (found[0], found[-1]) == (h11.Request, h11.EndOfMessage)


@pytest.mark.parametrize(
    ("wrong", "status", "said"),
    [
        (head("Content-Length: 2", "Transfer-Encoding: chunked"), 400, "twice"),
        (head("transfer-encoding: chunked", "CONTENT-LENGTH: 2"), 400, "twice"),
        (head("Content-Length: 2", "Content-Length: 2"), 400, "twice"),
        (head("Content-Length: 2", "Content-Length: 3"), 400, "twice"),
        (head("Transfer-Encoding: chunked", version="1.0"), 400, "HTTP/1.0"),
        (head("X: y\nZ: w"), 400, "CR LF"),
        (b"GET / HTTP/1.1\nHost: localhost\n\n", 400, "CR LF"),
        (head()[:-2] + b"\n", 400, "CR LF"),
        (head("X: y", " folded"), 400, "second line"),
        (head("X: y", "\tfolded"), 400, "second line"),
        (head(*["X: y"] * 5), 431, "6 of them, of at most 5"),
        (head("X: " + "y" * 400), 431, "of at most 400"),
    ],
)
def test_what_could_be_read_in_two_ways_or_is_too_large_is_refused(wrong: bytes, status: int, said: str) -> None:
    problem = head_problem(wrong, LIMITS)
    assert problem is not None
    assert (problem.status, said in problem.message) == (status, True)
    parser = StrictParser(LIMITS)
    parser.receive_data(wrong)
    with pytest.raises(h11.RemoteProtocolError):
        parser.next_event()
    assert parser.problem is not None
    assert parser.problem.status == status


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (head("Content-Length: +2"), 400),
        (head("Content-Length: 2, 3"), 400),
        (head("Content-Length : 2"), 400),
        (head("Transfer-Encoding: gzip, chunked"), 501),
        (head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 501),
        (head("Transfer-Encoding: \x0bchunked"), 400),
        (head("Transfer-Encoding: chunked") + b"-1\r\nab\r\n0\r\n\r\n", 400),
        (head("Transfer-Encoding: chunked") + b"0x2\r\nab\r\n0\r\n\r\n", 400),
        (head("Transfer-Encoding: chunked") + b"2\nab\r\n0\r\n\r\n", 400),
        (head("Transfer-Encoding: chunked") + b"1\r\nab\r\n0\r\n\r\n", 400),
        (head("Transfer-Encoding: chunked") + b"f" * 30 + b"\r\n", 400),
        (head("Transfer-Encoding: chunked") + b"1\r\na\r\n" * 1025, 400),
        (head("Host: elsewhere"), 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400),
        (b"GET /" + b"a" * 400, 431),
        (head("Transfer-Encoding: chunked") + b"1;" + b"a" * 400, 431),
    ],
)
def test_what_is_no_request_is_refused_without_repeating_it(wrong: bytes, status: int) -> None:
    parser = StrictParser(LIMITS)
    with pytest.raises(h11.RemoteProtocolError):
        events(wrong, parser)
    assert parser.problem is not None
    assert parser.problem.status == status
    assert "elsewhere" not in parser.problem.message


def test_chunks_of_any_size_are_read_as_long_as_most_are_not_tiny() -> None:
    chunks = b"100\r\n" + b"a" * 256 + b"\r\n"
    body = b"1\r\na\r\n" * 1000 + chunks * 2000 + b"0\r\n\r\n"
    assert events(head("Transfer-Encoding: chunked") + body, StrictParser(LIMITS)).count(h11.Data) == 3000


def test_the_next_request_is_checked_as_the_first() -> None:
    parser = StrictParser(LIMITS)
    parser.receive_data(head("Content-Length: 0") + head("Content-Length: 2", "Transfer-Encoding: chunked"))
    assert [type(parser.next_event()) for _ in range(2)] == [h11.Request, h11.EndOfMessage]
    assert parser.next_event() is h11.PAUSED
    for event in (h11.Response(status_code=200, headers=[("content-length", "0")]), h11.EndOfMessage()):
        parser.send(event)
    parser.start_next_cycle()
    with pytest.raises(h11.RemoteProtocolError):
        parser.next_event()
