"""Responses are read the same however their bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.client.events import Events
from brim.client.http1 import BadResponse, ResponseHead, ResponseReader, Take, request_bytes

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nTrailer: t\r\n\r\n"
COUNTED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\nhello!"
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED
UNTIL_CLOSED = b"HTTP/1.0 200 OK\r\n\r\nhello!"


def read(pieces: list[bytes]) -> tuple[ResponseReader, ResponseHead | None, bytes]:
    taken: list[bytes] = []
    heads: list[ResponseHead] = []

    def begun(head: ResponseHead) -> Take:
        heads.append(head)
        return taken.append

    reader = ResponseReader(begun)
    for piece in pieces:
        reader.feed(piece)
    return reader, (heads or [None])[0], b"".join(taken)


@given(st.data())
def test_a_response_is_the_same_in_any_pieces(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([CHUNKED, COUNTED, EMPTY, CONTINUED, UNTIL_CLOSED]))
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12))
    pieces = [whole[start:end] for start, end in pairwise([0, *sorted(cuts), len(whole)])]
    reader, head, body = read(pieces)
    assert head is not None
    assert (head.status, body) == (404 if b"404" in whole else 200, b"" if whole == EMPTY else b"hello!")
    assert reader.done == (whole != UNTIL_CLOSED)
    assert reader.ended()
    assert head.keeps_alive == (whole != UNTIL_CLOSED)


@pytest.mark.parametrize("cut", [CHUNKED[:-1], COUNTED[:-1], b"HTTP/1.1 200 OK\r\n"])
def test_a_response_that_is_cut_off_is_not_whole(cut: bytes) -> None:
    assert not read([cut])[0].ended()


@pytest.mark.parametrize(
    "wrong",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-5\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_not_http_is_said(wrong: bytes) -> None:
    with pytest.raises(BadResponse):
        read([wrong])


def test_a_request_is_written_with_its_length() -> None:
    wanted = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}"
    assert request_bytes("POST", "/x", {"host": "h"}, b"{}") == wanted
    assert request_bytes("GET", "/x", {"host": "h"}, None) == b"GET /x HTTP/1.1\r\nhost: h\r\n\r\n"


@given(st.lists(st.integers(0, 60), max_size=8), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_in_any_pieces(cuts: list[int], newline: bytes) -> None:
    stream = b'data: {"a": 1}\n\n: a comment\n\nevent: x\ndata: two\ndata:lines\n\ndata: [DONE]\n\n'
    stream = stream.replace(b"\n", newline)
    found: list[bytes] = []
    events = Events(found.append)
    for start, end in pairwise([0, *sorted(cuts), len(stream)]):
        events.feed(stream[start:end])
    assert (found, events.ended) == ([b'{"a": 1}', b"two\nlines"], True)
