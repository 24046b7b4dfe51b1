"""A server on a real socket that answers `/metrics` as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


def text(body: str | bytes, status: int = 200, **headers: str) -> Answer:
    def send(handler: BaseHTTPRequestHandler) -> None:
        content = body.encode() if isinstance(body, str) else body
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return send


def endless(piece: bytes, pause: float = 0.0) -> Answer:
    """A body that never ends."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(piece)
                time.sleep(pause)
        except OSError:
            pass  # the client has had enough

    return send


@contextmanager
def serving(*answers: Answer, port: int = 0) -> Iterator[tuple[str, list[Any]]]:
    """Its address, and the headers of all that was asked; the last answer is given again and again."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, dict(self.headers)))
            answers[min(len(asked), len(answers)) - 1](self)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

    server = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
