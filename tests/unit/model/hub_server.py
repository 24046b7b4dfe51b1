"""A hub on this machine: repositories in memory, spoken to by the hub's own library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

COMMIT = "c" * 40
_LARGE = 100_000


@dataclass(slots=True)
class Hub:
    """What it has: files by name, or the code of the error that is given for a repository."""

    repositories: dict[str, Mapping[str, bytes] | str]
    url: str = ""
    sent: list[str] = field(default_factory=list)  # files, in the order in which they were asked for
    ranges: list[tuple[int, int]] = field(default_factory=list)  # of files that were asked for in part
    halfway: Event | None = None  # what large files wait for in the middle


@contextmanager
def hub_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, cache: Path, repositories: dict[str, Mapping[str, bytes] | str]
) -> Iterator[Hub]:
    """The library's endpoint and cache, until it is not needed any more."""
    constants = pytest.importorskip("huggingface_hub.constants")
    hub = Hub(repositories)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        parts = path.removeprefix("api/models/").split("/")
        name = "/".join(parts[:2])
        found = self.hub.repositories.get(name, "RepoNotFound")
        if isinstance(found, str):
            self._send(403 if found == "GatedRepo" else 404, b"", {"X-Error-Code": found})
        elif path.startswith("api/models/"):
            files = [{"rfilename": name, "size": len(content)} for name, content in found.items()]
            listing = {"id": name, "sha": COMMIT, "siblings": files, "tags": []}
            self._send(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})
        else:
            self._file("/".join(parts[4:]), found)

    def _file(self, name: str, files: Mapping[str, bytes]) -> None:
        if name not in files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        if self.command == "GET":
            self.hub.sent.append(name)
        digest = hashlib.sha256(files[name]).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT}
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if not asked:
            self._send(200, files[name], headers)
            return
        first, last = map(int, asked.split("-"))
        self.hub.ranges.append((first, last))
        self._send(206, files[name][first : last + 1], headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "GET":
            return
        if self.hub.halfway is not None and len(body) > _LARGE:
            self.wfile.write(body[: len(body) // 2])
            self.hub.halfway.wait(20)
            body = body[len(body) // 2 :]
        self.wfile.write(body)

    def log_message(self, *said: object) -> None:
        """Tests are quiet."""
