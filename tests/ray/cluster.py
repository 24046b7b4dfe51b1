"""A Ray of a test's own, an application on it, and clients; processes are found by the titles that Ray gives them."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

SECONDS = 90
REPORT_SECONDS = 0.5
SMALL = "--memory 512MiB --max-seqs 8 --max-queue 32 --canary 16MiB"


def wait(done: Callable[[], Any], seconds: float = SECONDS) -> Any:
    until = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.05)
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass(slots=True)
class OnRay:
    """An application that is served, seen from outside."""

    url: str
    logs: Path
    key: str = ""

    def client(self, **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.Client(base_url=self.url, headers=headers, **{"timeout": SECONDS, **options})

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body, **options) if body is not None else client.post(path, **options)

    def get(self, path: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path)

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of all processes about requests."""
        found = []
        for path in self.logs.glob("worker-*.err"):
            for line in path.read_text(errors="replace").splitlines():
                if line.startswith('{"time"'):
                    with suppress(ValueError):  # a line that is being written
                        found.append(json.loads(line))
        return found

    def logged(self, response: httpx.Response) -> list[dict[str, Any]]:
        name = response.headers.get_list("x-request-id")[0]  # Ray Serve adds one of its own
        return wait(lambda: [entry for entry in self.log if entry["id"] == name], 10)

    def replicas(self) -> list[dict[str, Any]]:
        return self.get("/v1/memory").json()["replicas"]

    def ready(self, count: int) -> bool:
        try:
            found = self.get("/health").json()
        except (httpx.HTTPError, ValueError):
            return False
        return list(found.get("replicas", {}).values()).count("ready") == count

    def is_idle(self) -> bool:
        """Wait until no replica holds anything."""

        def idle() -> bool:
            return all(one["running"] == one["waiting"] == one["kv"]["blocks_held"] == 0 for one in self.replicas())

        return wait(idle)


def settled(found: OnRay) -> None:
    """Wait until nothing runs, and until routers have heard of it: they know what replicas last reported."""
    found.is_idle()
    time.sleep(4 * REPORT_SECONDS)


def processes(title: str) -> list[int]:
    """Those of this machine whose title has these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if title in path.read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                found.append(int(path.parent.name))
    return sorted(found)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def ray_running(**options: Any) -> Iterator[Path]:
    """A Ray without an application; the folder of its logs."""
    import ray

    # A short path: Ray's sockets are in it.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        chosen = {"num_cpus": 8, "include_dashboard": False, "object_store_memory": 80 << 20, "logging_level": "ERROR"}
        ray.init(**{**chosen, "log_to_driver": False, "_temp_dir": folder, **options})
        try:
            yield Path(folder) / "session_latest" / "logs"
        finally:
            ray.shutdown()


@contextmanager
def serving(logs: Path, port: int | None = None) -> Iterator[OnRay]:
    """Ray Serve with its HTTP proxy, and nothing deployed."""
    from ray import serve

    port = port or free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "ERROR"})
    try:
        yield OnRay(f"http://127.0.0.1:{port}", logs)
    finally:
        serve.shutdown()


def deploy(found: OnRay, arguments: dict[str, Any]) -> OnRay:
    """An application in place of the one before."""
    from ray import serve

    import brim.ray

    serve.run(
        brim.ray.app({"cpus": 0.1, "report_seconds": REPORT_SECONDS, **arguments}), name="default", route_prefix="/"
    )
    wanted = arguments.get("replicas", 1) if "models" not in arguments else len(arguments["models"])
    wait(lambda: found.ready(wanted))
    return found


def message(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}
