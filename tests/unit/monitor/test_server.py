"""Servers over real sockets: those of other engines, those that go away, and those that mean harm."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from brim.errors import InvalidRequest
from brim.monitor.asking import ask
from brim.monitor.listening import is_of_this_machine, processes_of
from brim.monitor.server import MonitoredServer, NoReading, checked_url, shown_json
from brim.monitor.watched import WatchedServers
from tests.unit.monitor import metrics_texts as texts
from tests.unit.monitor.fake_servers import endless, serving, text


def test_a_server_is_asked_with_its_key() -> None:
    with serving(text(texts.vllm())) as (url, asked):
        found = MonitoredServer(url + "/", "secret").look()
    assert (found.url, found.figures.engine, found.memory) == (url, "vllm", None)
    assert [(path, headers["Authorization"]) for path, headers in asked] == [("/metrics", "Bearer secret")]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, "{}", "the API key is missing or wrong; give --api-key"),
        (404, "", "has no /metrics; SGLang has them with --enable-metrics"),
        (503, json.dumps({"error": {"message": "the model is\x1b[2J being loaded"}}), "the model is�[2J being loaded"),
        (503, '{"error": "busy"}', "/metrics answered 503"),
        (500, "[" * 100_000, "/metrics answered 500"),
        (302, "", "/metrics answered 302"),
        (200, "<html>", "has no metrics of Brim, vLLM, SGLang or TGI"),
    ],
)
def test_what_is_wrong_is_said(status: int, body: str, said: str) -> None:
    with serving(text(body, status, location="http://127.0.0.1:1/")) as (url, asked):
        with pytest.raises(NoReading) as refused:
            MonitoredServer(url, "secret").look()
        assert said in str(refused.value)
        assert refused.value.answered
        assert len(asked) == 1, "a redirect is not followed: it would get the key"


def test_nobody_is_there() -> None:
    with pytest.raises(NoReading, match=r"no server answers at http://127\.0\.0\.1:1 ") as refused:
        MonitoredServer("http://127.0.0.1:1").look()
    assert not refused.value.answered


def test_answers_are_bounded_in_size_and_time() -> None:
    with serving(endless(b"vllm:x 1\n" * 10_000)) as (url, _), pytest.raises(OSError, match="larger than 1 MiB"):
        ask(f"{url}/metrics", most=1 << 20)
    began = time.monotonic()
    with serving(endless(b"a", pause=0.02)) as (url, _), pytest.raises(OSError, match="takes too long"):
        ask(f"{url}/metrics", seconds=0.3)
    assert time.monotonic() - began < 5
    with serving(text(b"\xff\x00" * 1000)) as (url, _), pytest.raises(NoReading, match="no metrics"):
        MonitoredServer(url).look()


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "http://h:70000", "ftp://h", "http://h:0", "http://[::1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="write it like"):
        checked_url(url)


def test_a_report_of_brim_comes_with_its_figures() -> None:
    report = {"object": "brim.memory", "card": {}, "model": "m\x1b[31m"}
    with serving(text(texts.BRIM), text(json.dumps(report))) as (url, asked):
        found = MonitoredServer(url).look()
    assert [path for path, _ in asked] == ["/metrics", "/v1/memory"]
    assert found.memory == {**report, "model": "m�[31m"}
    for odd in ("[]", "{}", '{"object": "brim.memory"}', "no"):
        with serving(text(texts.BRIM), text(odd)) as (url, _):
            assert MonitoredServer(url).look().memory is None


def test_reports_are_cut_where_they_are_deep() -> None:
    deep: object = "x"
    for _ in range(50):
        deep = [deep]
    assert len(json.dumps(shown_json(deep))) < 40


def test_a_server_that_goes_away_is_shown_as_it_was(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads, serving(text(texts.sglang())) as (other, _):
        with serving(text(texts.vllm(generated=100)), text(texts.vllm(generated=300))) as (url, _):
            servers = [MonitoredServer(url), MonitoredServer(other)]
            watched = WatchedServers(servers, threads, (tmp_path / "leases", tmp_path / "recordings"), named=True)
            first = watched.look()
            assert [one.reading.figures.engine for one in first.servers if one.reading] == ["vllm", "sglang"]
            assert first.machine is not None
            port = int(url.rpartition(":")[2])
        gone = watched.look().servers[0]
        assert gone.problem.startswith(f"no server answers at {url}")
        assert gone.reading == first.servers[0].reading
        with serving(text(texts.vllm(generated=500)), port=port):
            back = watched.look().servers[0]
        assert not back.problem
        assert back.reading is not None
        assert back.reading.rates.generated_per_second is not None


def test_which_process_listens() -> None:
    import os

    with serving(text("")) as (url, _):
        assert os.getpid() in processes_of(url)
        assert processes_of("http://127.0.0.1:1") == frozenset()
    assert is_of_this_machine("http://localhost:8000")
    assert is_of_this_machine("http://[::1]:8000")
    assert not is_of_this_machine("http://192.0.2.7:8000")
    assert not is_of_this_machine("http://no-such-host.invalid")
