"""`brim top` from the command line, against servers on real sockets and machines made by hand."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from brim.cli import top
from brim.cli.main import run
from brim.reserve.hold import hold
from tests.unit.cli.show.test_top import report
from tests.unit.monitor import metrics_texts as texts
from tests.unit.monitor.fake_servers import serving, text
from tests.unit.probes.fake_nvml import GIB, FakeGpu, FakeNvml


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    for name, folder in (("BRIM_LEASES", "leases"), ("BRIM_CACHE", "cache")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("BRIM_API_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(top, "DEFAULT_URL", "http://127.0.0.1:1")
    card = FakeGpu("NVIDIA L4", "GPU-aa", 24 * GIB, 20 * GIB, processes={os.getpid(): 18 * GIB, 2**22 + 1: GIB})
    nvml = FakeNvml([card])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(["top", "--interval", "0.1", *arguments]) == code
    return capsys.readouterr().out


def test_a_server_of_vllm_with_its_card(capsys: pytest.CaptureFixture[str]) -> None:
    looks = text(texts.vllm(generated=1000)), text(texts.vllm(generated=1200, first=14))
    with serving(*looks) as (url, _), hold(gpu="GPU-aa", bytes="2GiB", role="embedder"):
        found = shown(capsys, "--url", url, "--once")
    for part in (
        f"org/model on vLLM  {url}",
        "75% used, of 16,000 tokens",
        "8 running, 3 waiting",
        "generated, 0 of prompts",
        "first token 175 ms (p99 248 ms)",
        "between tokens 18 ms",
        "4.00 GiB free on its GPU now",
        "3 preemptions, 42 requests finished",
        "GPU 0  NVIDIA L4  4.00 GiB free of 24.00 GiB",
        "embedder",
        "18.00 GiB",
    ):
        assert part in found, (part, found)


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(text(texts.sglang())) as (url, _):
        found = json.loads(shown(capsys, "--url", url, "--json"))
    (server,) = found["servers"]
    assert (found["object"], server["engine"], server["url"]) == ("brim.top", "sglang", url)
    assert server["pool"] == {
        "held": 2000,
        "cached": 4000,
        "free": 2000,
        "unit_tokens": 1.0,
        "held_fraction": 0.25,
        "cached_fraction": 0.5,
        "tokens": 8000,
        "held_tokens": 2000,
    }
    assert server["rates"]["generated_per_second"] == 0.0
    assert server["rates"]["first_token"]["count"] == 10
    assert server["rates"]["first_token"]["p50_seconds"] == pytest.approx(0.05)
    assert found["machine"]["gpus"][0]["holders"][0]["server"] == url


def test_several_servers_and_one_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(text(texts.vllm())) as (one, _), serving(text(texts.sglang())) as (two, _):
        both = shown(capsys, "--url", one, "--url", two, "--once")
        assert both.index("org/model on vLLM") < both.index("org/other on SGLang") < both.index("GPU 0")
        assert run(["top", "--interval", "0.1", "--url", one, "--url", "http://127.0.0.1:1", "--once"]) == 1
        said = capsys.readouterr()
    assert "org/model on vLLM" in said.out
    assert "no server answers at http://127.0.0.1:1" in said.err


def test_no_server_shows_the_machine(capsys: pytest.CaptureFixture[str], machine: FakeNvml) -> None:
    found = shown(capsys)
    assert "GPU 0  NVIDIA L4" in found
    assert "no server answers at http://127.0.0.1:1; name one with --url" in found
    assert json.loads(shown(capsys, "--json"))["servers"] == []
    machine.driver = False
    with hold(gpu="cpu:lab:4GiB", bytes="1GiB", role="tower"):
        found = shown(capsys)
    assert "no GPU: " in found
    assert "Driver Not Loaded" in found
    assert "cpu:lab  budget of 4.00 GiB" in found
    assert "tower" in found
    assert "no leases" in shown(capsys)


def test_another_machine_is_not_this_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.monitor.watched.is_of_this_machine", lambda url: False)
    with serving(text(texts.vllm())) as (url, _):
        assert "NVIDIA L4" not in shown(capsys, "--url", url, "--once")
        assert json.loads(shown(capsys, "--url", url, "--json"))["machine"] is None


@pytest.mark.parametrize("harm", [{"card": 5}, {"requests": None}, {"health": {"status": 1}}, {"events": "x" * 100}])
def test_a_report_that_is_odd_leaves_the_metrics(capsys: pytest.CaptureFixture[str], harm: dict[str, Any]) -> None:
    odd = json.dumps(report() | {"object": "brim.memory"} | harm)
    with serving(text(texts.BRIM), text(odd), text(texts.BRIM), text(odd)) as (url, _):
        found = shown(capsys, "--url", url, "--once")
    assert "50% used, 10% cached, of 160 tokens (1.0 MiB reserved)" in found


def test_a_terminal_obeys_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(text(texts.vllm(model="[bold]\x1b]0;evil\x07"))) as (url, _):
        found = shown(capsys, "--url", url, "--once")
    assert "\x1b" not in found
    assert "[bold]" in found


def test_too_many_servers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    urls = [part for number in range(17) for part in ("--url", f"http://127.0.0.1:{number + 1}")]
    assert run(["top", *urls]) == 2
    assert "at most 16" in capsys.readouterr().err
