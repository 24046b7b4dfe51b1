"""Two replicas of the tiny model: conversations stay where their blocks are, and what one replica loses is little."""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("ray.serve")

from tests.ray.cluster import SMALL, OnRay, deploy, kill, message, processes, settled, wait

if TYPE_CHECKING:
    import httpx

WORDS = ("one", "two", "three", "red", "green", "blue", "river", "stone", "cloud", "seven", "paper", "window")
TITLE = "ray::ServeReplica:default:engine-brim-tiny"


@pytest.fixture(scope="module")
def two(on_ray: OnRay) -> OnRay:
    return deploy(on_ray, {"model": "brim-tiny", "replicas": 2, "options": SMALL})


def chat(found: OnRay, messages: list[dict[str, str]], **options: Any) -> httpx.Response:
    return found.post("/v1/chat/completions", {"messages": messages, "max_tokens": 8, "temperature": 0, **options})


def test_conversations_of_50_turns_reuse_their_prefixes(two: OnRay) -> None:
    draw = random.Random(7)

    def converse(number: int) -> tuple[int, int]:
        """Tokens that could have been found, and those that were."""
        own = random.Random(number)
        messages: list[dict[str, str]] = []
        could, found, before = 0, 0, 0
        for _ in range(50):
            messages.append(message(" ".join(own.choices(WORDS, k=14))))
            answer = chat(two, messages, ignore_eos=True).json()
            usage = answer["usage"]
            could += before
            found += usage["prompt_tokens_details"]["cached_tokens"]
            before = usage["prompt_tokens"]
            messages.append(message(answer["choices"][0]["message"]["content"], "assistant"))
        return could, found

    numbers = draw.sample(range(10**6), 4)
    with ThreadPoolExecutor(4) as clients:
        counted = list(clients.map(converse, numbers))
    could, reused = (sum(column) for column in zip(*counted, strict=True))
    assert could > 50_000
    assert reused >= 0.9 * could
    assert all(one["kv"]["blocks_cached"] > 0 for one in two.replicas())  # both had conversations


def test_requests_that_come_together_are_shared(two: OnRay) -> None:
    """Each is counted where it is to go before Ray has sent it there: the next decision knows of it."""
    settled(two)

    def ask(number: int) -> int:
        return chat(two, [message(f"{number}")], max_tokens=600, ignore_eos=True).status_code

    def running() -> list[int]:
        return [one["running"] for one in two.replicas()]

    with ThreadPoolExecutor(6) as clients:
        asked = [clients.submit(ask, number) for number in range(6)]
        found = wait(lambda: counts if sum(counts := running()) == 6 else None)
        assert min(found) >= 2, found
        assert {one.result() for one in asked} == {200}


def test_a_client_that_leaves_frees_its_blocks(two: OnRay) -> None:
    body = {"messages": [message("Tell me.")], "stream": True, "max_tokens": 1500, "ignore_eos": True}
    with two.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        for _ in range(5):
            next(lines)
        wait(lambda: sum(one["running"] for one in two.replicas()) == 1)
    assert two.is_idle()
    wait(lambda: any(entry["status"] == 499 for entry in two.log), 10)


def test_metrics_and_memory_are_of_all_replicas(two: OnRay) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    families = {one.name: one for one in text_string_to_metric_families(two.get("/metrics").text)}
    names = set(two.get("/health").json()["replicas"])
    assert {sample.labels["replica"] for sample in families["brim_running"].samples} == names
    assert {sample.labels["replica"] for sample in families["vllm:num_requests_waiting"].samples} == names
    report = two.get("/v1/memory").json()
    assert {one["name"] for one in report["replicas"]} == names
    assert all(one["card"]["total_bytes"] == 512 << 20 for one in report["replicas"])
    other = sorted(names)[1]
    assert two.get(f"/v1/memory?replica={other}&after=0").json()["replica"] == other
    assert two.get("/v1/memory?replica=nobody").status_code == 404
    assert two.get("/v1/memory?before=3").status_code == 400


class Streams:
    """Clients that stream one answer after the other, until told to stop."""

    def __init__(self, found: OnRay, clients: int) -> None:
        self._found = found
        self._stopped = threading.Event()
        self.gaps: list[float] = []  # between two events of an answer that came to its end
        self.ends: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Streams:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for one in self._threads:
            one.join(60)
            assert not one.is_alive(), "an answer hangs"

    def _run(self, number: int) -> None:
        with self._found.client(timeout=60) as client:
            for turn in range(10**6):
                if self._stopped.is_set():
                    return
                self.ends.append(self._ask(client, f"{number} {turn}"))

    def _ask(self, client: httpx.Client, text: str) -> str:
        body = {"messages": [message(text)], "stream": True, "max_tokens": 300, "ignore_eos": True}
        gaps, last = [], None
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                return f"status {answer.status_code}: {answer.read()[:200]!r}"
            for line in answer.iter_lines():
                if not line:
                    continue
                now = time.monotonic()
                gaps += [] if last is None else [now - last]
                last = now
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    self.gaps += gaps
                    return "done"
                if "error" in (event := json.loads(data)):
                    return str(event["error"]["code"])
        return "cut off"


def test_a_replica_that_is_killed_loses_what_it_was_streaming_and_comes_back(two: OnRay) -> None:
    wait(lambda: two.ready(2))
    with Streams(two, 6) as streams:
        wait(lambda: streams.ends.count("done") >= 6)
        wait(lambda: all(one["running"] for one in two.replicas()))
        victims = processes(TITLE)
        assert len(victims) == 2
        streams.gaps.clear()
        kill(victims[0])
        before = len(streams.ends)
        wait(lambda: two.ready(2), 60)
        after = len(streams.ends)
    assert set(streams.ends) <= {"done", "replica_lost"}, set(streams.ends)
    assert streams.ends.count("replica_lost") <= 6
    assert after > before  # the other one went on
    assert max(streams.gaps) < 5  # while another process loads a model on the same cores
    assert statistics.median(streams.gaps) < 0.5
    replicas = {one["name"]: two.get(f"/v1/memory?replica={one['name']}").json() for one in two.replicas()}
    newest = max(replicas.values(), key=lambda one: one["began"])
    assert newest["fit"]["from_store"], "it is fitted from the store"
    assert newest["kv"]["tokens"] == min(one["kv"]["tokens"] for one in replicas.values())


def test_requests_that_have_not_streamed_a_token_are_answered_elsewhere(two: OnRay) -> None:
    wait(lambda: two.ready(2))
    settled(two)

    def ask(number: int) -> int:
        return chat(two, [message(f"{number}")], max_tokens=200, ignore_eos=True).status_code

    with ThreadPoolExecutor(6) as clients:
        asked = [clients.submit(ask, number) for number in range(12)]
        wait(lambda: all(one["running"] for one in two.replicas()), 20)
        kill(processes(TITLE)[0])
        assert [one.result() for one in asked] == [200] * 12
    wait(lambda: two.ready(2), 60)


def test_a_rolling_update_ends_no_answer(two: OnRay) -> None:
    """New options replace every replica; those that drain finish what they have."""
    with Streams(two, 3) as streams:
        wait(lambda: streams.ends.count("done") >= 2)
        deploy(two, {"model": "brim-tiny", "replicas": 2, "options": SMALL + " --max-len 1024"})
        wait(lambda: two.get("/v1/models").json()["data"][0]["max_model_len"] == 1024)
        done = streams.ends.count("done")
        wait(lambda: streams.ends.count("done") >= done + 3)
    assert set(streams.ends) == {"done"}, streams.ends


def test_what_no_replica_can_start_in_time_is_refused_with_a_time(two: OnRay) -> None:
    deploy(two, {"model": "brim-tiny", "replicas": 2, "options": "--memory 512MiB --max-seqs 1 --max-queue 1"})

    def ask(number: int) -> tuple[int, int]:
        found = chat(two, [message(f"{number}")], max_tokens=200, ignore_eos=True)
        return found.status_code, int(found.headers.get("retry-after", 0))

    with ThreadPoolExecutor(12) as clients:
        found = list(clients.map(ask, range(12)))
    assert {status for status, _ in found} == {200, 429}
    assert all(1 <= wait_seconds <= 120 for status, wait_seconds in found if status == 429)
    assert two.is_idle()
