"""Raw sockets against a server: what is no request, too large, too slow or too much, and who is not hurt by it."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from brim.serve.settings import ConnectionLimits, RequestLimits
from tests.integration.served import Served, served, wait
from tests.integration.test_chat import engine_of

MOST = 12  # connections
BODY = 20_000  # bytes
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
JSON = b"Content-Type: application/json\r\n"
ASKED = json.dumps({"prompt": "one two three", "max_tokens": 1, "temperature": 0}).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    limits = RequestLimits(body_bytes=BODY, body_seconds=0.6, body_rate=BODY)
    connections = ConnectionLimits(connections=MOST, header_seconds=0.6, idle_seconds=2, send_seconds=0.6)
    engine = engine_of(kv_tokens=1024)
    with served(engine, threads=True, limits=limits, connection_limits=connections) as found:
        yield found
        assert found.is_empty()


@contextmanager
def connected(server: Served) -> Iterator[socket.socket]:
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as found:
        yield found


class _Read:
    """The next response of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        response = http.client.HTTPResponse(connection)
        response.begin()
        self.status = response.status
        self.headers = response.headers
        self.body: Any = json.loads(response.read())
        response.close()

    @property
    def code(self) -> str | None:
        return self.body["error"]["code"]


def asked(server: Served, sent: bytes) -> _Read:
    """The answer to it; the connection must be closed behind it."""
    with connected(server) as connection:
        connection.sendall(sent)
        found = _Read(connection)
        assert found.headers["connection"] == "close"
        assert connection.recv(1) == b""
        return found


def post(*headers: bytes, body: bytes = b"") -> bytes:
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + JSON + b"".join(headers) + b"\r\n" + body


def chunked(*chunks: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked\r\n", body=b"".join(chunks))


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


LENGTH = b"Content-Length: %d\r\n" % len(ASKED)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(post(LENGTH, b"Transfer-Encoding: chunked\r\n", body=ASKED), 400, id="both lengths"),
        pytest.param(post(LENGTH, LENGTH, body=ASKED), 400, id="the same length twice"),
        pytest.param(post(LENGTH, b"Content-Length: 1\r\n", body=ASKED), 400, id="two lengths"),
        pytest.param(HEALTH.replace(b"\r\n", b"\n"), 400, id="bare LF"),
        pytest.param(HEALTH[:-2] + b"X: y\r\n folded\r\n\r\n", 400, id="a folded header"),
        pytest.param(HEALTH[:-2] + b"X: y\r\n" * 10_000 + b"\r\n", 431, id="10,000 headers"),
        pytest.param(HEALTH[:-2] + b"X: " + b"y" * 40_000 + b"\r\n\r\n", 431, id="a large header"),
        pytest.param(b"GET /" + b"a" * 40_000, 431, id="an endless path"),
        pytest.param(chunked(b"-1\r\nab\r\n"), 400, id="a negative chunk"),
        pytest.param(chunked(b"2\r\nabc\r\n0\r\n\r\n"), 400, id="a chunk that is longer than it says"),
        pytest.param(chunked(b"fffffffffffffffffffffffff\r\n"), 400, id="a chunk of any size"),
        pytest.param(chunked(chunk(b"a") * 2000), 400, id="tiny chunks"),
        pytest.param(post(b"Content-Length: 1e3\r\n"), 400, id="a length that is none"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, id="TLS"),
        pytest.param(post(b"Content-Length: 20001\r\n"), 413, id="a body that is announced and too large"),
        pytest.param(post(b"Content-Length: 999999999999\r\n", body=b"a" * 500_000), 413, id="a body of a terabyte"),
        pytest.param(chunked(chunk(b"a" * 5000) * 5), 413, id="chunks that are too large together"),
        pytest.param(b"GET /health HTTP/1.1\r\n", 408, id="headers without an end"),
        pytest.param(post(LENGTH, body=ASKED[:-1]), 408, id="a body without an end"),
        pytest.param(chunked(chunk(ASKED)), 408, id="chunks without an end"),
    ],
)
def test_what_is_wrong_is_refused_and_the_connection_closed(server: Served, sent: bytes, status: int) -> None:
    began = time.monotonic()
    found = asked(server, sent)
    assert found.status == status
    assert found.body["error"]["type"] == "invalid_request_error"
    assert time.monotonic() - began < 8  # nothing keeps it
    assert server.get("/health").status_code == 200


def test_what_follows_a_smuggled_request_is_not_read(server: Served) -> None:
    inner = b"0\r\n\r\n" + HEALTH
    lengths = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % len(inner)
    with connected(server) as connection:
        connection.sendall(post(lengths, body=inner))
        received = b"".join(iter(lambda: connection.recv(4096), b""))
    assert received.count(b"HTTP/1.1 ") == 1


def test_an_answer_is_read_though_the_client_still_sends(server: Served) -> None:
    """More than all buffers hold: a reset would take the answer back."""
    with connected(server) as connection:
        connection.sendall(post(b"Content-Length: 30000000\r\n"))
        connection.sendall(b"a" * 30_000_000)
        assert _Read(connection).code == "body_too_large"


@pytest.mark.parametrize("sent", [HEALTH[:-2] + b"X: ", post(b"Content-Length: 5000\r\n")])
def test_who_sends_a_byte_at_a_time_is_cut_off(server: Served, sent: bytes) -> None:
    began = time.monotonic()
    with connected(server) as connection:
        connection.sendall(sent)
        connection.settimeout(0.02)
        while time.monotonic() - began < 20:
            connection.sendall(b"a")
            try:
                assert connection.recv(1, socket.MSG_PEEK)
                break
            except TimeoutError:
                continue
        connection.settimeout(20)
        found = _Read(connection)
    assert (found.status, found.code) == (408, "request_timeout")
    assert time.monotonic() - began < 8


def test_a_large_body_that_comes_steadily_has_the_time_it_needs(server: Served) -> None:
    """A second for each 20,000 bytes, beyond the first 0.6."""
    body = ASKED[:-1] + b" " * (BODY - len(ASKED)) + b"}"
    with connected(server) as connection:
        connection.sendall(post(b"Content-Length: %d\r\n" % len(body)))
        for place in range(0, len(body), 2000):
            connection.sendall(body[place : place + 2000])
            time.sleep(0.08)
        assert _Read(connection).status == 200


def test_pipelined_requests_are_answered_in_their_order(server: Served) -> None:
    missing = HEALTH.replace(b"/health", b"/nothing")
    with connected(server) as connection:
        connection.sendall(HEALTH + missing + post(LENGTH, body=ASKED) + HEALTH)
        stream = connection.makefile("rb")
        statuses = []
        for _ in range(4):
            statuses.append(int(stream.readline().split()[1]))
            headers = http.client.parse_headers(stream)
            stream.read(int(headers["content-length"]))
        stream.close()
    assert statuses == [200, 404, 200, 200]


def test_an_idle_connection_is_closed_and_one_in_use_is_not(server: Served) -> None:
    with connected(server) as idle, connected(server) as used:
        for connection in (idle, used):
            connection.sendall(HEALTH)
            assert _Read(connection).status == 200
        began = time.monotonic()
        while time.monotonic() - began < 3:
            used.sendall(HEALTH)
            assert _Read(used).status == 200
            time.sleep(0.1)
        assert idle.recv(1) == b""


def test_who_connects_and_says_nothing_is_let_go_in_silence(server: Served) -> None:
    with connected(server) as connection:
        assert connection.recv(1) == b""


def test_a_body_that_nobody_reads_ends_the_connection(server: Served) -> None:
    with connected(server) as connection:
        connection.sendall(HEALTH[:-2] + b"Content-Length: 10\r\n\r\n")
        assert _Read(connection).status == 200
        assert connection.recv(1) == b""


def test_beyond_the_bound_clients_are_told_to_come_back_and_nothing_accumulates(server: Served) -> None:
    with ExitStack() as stack:
        for _ in range(MOST):  # each in the middle of a request
            stack.enter_context(connected(server)).sendall(post(b"Content-Length: 1000\r\n"))
        found = asked(server, HEALTH)
    assert (found.status, found.code) == (503, "too_many_connections")
    assert int(found.headers["retry-after"]) > 0
    wait(lambda: server.get("/health").status_code == 200)
    assert 'brim_http_refusals_total{status="503"}' in server.get("/metrics").text


def test_half_open_connections_make_room(server: Served) -> None:
    """Silent ones, those that stay without a word and those that vanish, keep nobody out for long."""
    with ExitStack() as stack:
        for number in range(5 * MOST):
            connection = stack.enter_context(connected(server))
            if number % 2:
                connection.sendall(b"GET /he")
            if number % 3 == 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()  # with a reset
        began = time.monotonic()
        wait(lambda: server.get("/health").status_code == 200, seconds=10)
        assert time.monotonic() - began < 5


def test_who_does_not_read_is_let_go(server: Served) -> None:
    document = HEALTH.replace(b"/health", b"/openapi.json")
    http = server.server.lifecycle.http
    wait(lambda: http.connections == 0)
    with connected(server) as connection:
        connection.sendall(document * 1000)  # answers of many megabytes
        wait(lambda: http.connections == 1)
        wait(lambda: http.connections == 0, seconds=20)
        assert connection.recv(1) == b"H"  # of what is in its own buffers
