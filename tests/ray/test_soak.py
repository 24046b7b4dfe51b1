"""Random faults under load: whatever is killed, every request gets an answer or an error, and serving goes on."""

from __future__ import annotations

import os
import random
import threading
import time
import warnings

import pytest

pytest.importorskip("ray.serve")

import httpx

from tests.ray.cluster import SMALL, OnRay, deploy, kill, message, processes, wait

pytestmark = pytest.mark.soak

FAULTS = int(os.environ.get("BRIM_FAULTS", "200"))
PAUSE_SECONDS = 3.0
TITLES = {
    "replica": "ray::ServeReplica:default:engine-brim-tiny",
    "front end": "ray::ServeReplica:default:front",
    "proxy": "ray::ProxyActor",
    "controller": "ray::ServeController",
}


class Asking(threading.Thread):
    """A client that asks again and again; how each request ended is kept."""

    def __init__(self, found: OnRay, number: int, stopped: threading.Event) -> None:
        super().__init__(daemon=True)
        self._found, self._draw, self._stopped = found, random.Random(number), stopped
        self.ends: list[str] = []
        self.slowest = 0.0

    def run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            self.ends.append(self._ask())
            self.slowest = max(self.slowest, time.monotonic() - began)

    def _ask(self) -> str:
        stream = self._draw.random() < 0.5
        body = {"messages": [message(f"{self._draw.random()}")], "max_tokens": 60, "stream": stream, "ignore_eos": True}
        try:
            with httpx.Client(timeout=120) as client:
                answer = client.post(f"{self._found.url}/v1/chat/completions", json=body)
        except httpx.TimeoutException:
            return "hangs"
        except httpx.HTTPError as error:
            time.sleep(0.2)
            return f"connection: {type(error).__name__}"  # its proxy was killed
        if answer.status_code != 200:
            time.sleep(0.2)
            return f"status {answer.status_code}"
        return "done" if not stream or answer.text.endswith("data: [DONE]\n\n") else "broken off"


def test_random_faults(on_ray: OnRay) -> None:
    found = deploy(on_ray, {"model": "brim-tiny", "replicas": 2, "frontends": 2, "options": SMALL})
    draw, stopped, killed = random.Random(), threading.Event(), dict.fromkeys(TITLES, 0)
    clients = [Asking(found, number, stopped) for number in range(4)]
    for client in clients:
        client.start()
    while sum(killed.values()) < FAULTS:
        (kind,) = draw.choices(list(TITLES), [6, 1, 1, 1])
        victims = processes(TITLES[kind])
        if victims:
            kill(draw.choice(victims))
            killed[kind] += 1
        time.sleep(draw.uniform(0, 2 * PAUSE_SECONDS))
    wait(lambda: found.ready(2), 180)
    time.sleep(2)
    before = sum(client.ends.count("done") for client in clients)
    wait(lambda: sum(client.ends.count("done") for client in clients) > before + 10)
    stopped.set()
    for client in clients:
        client.join(130)
        assert not client.is_alive(), "a request hangs"
    ends = [end for client in clients for end in client.ends]
    counts = {end: ends.count(end) for end in sorted(set(ends))}
    assert "hangs" not in counts, counts
    assert counts["done"] > FAULTS, counts
    slowest = max(one.slowest for one in clients)
    warnings.warn(f"killed {killed}; requests {counts}; the slowest took {slowest:.0f} s", stacklevel=1)
    assert found.is_idle()
