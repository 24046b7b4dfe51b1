"""What the page is made of: its files and headers, the ledger of `/v1/memory`, and plans over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import httpx

from brim.cli.main import run
from brim.cli.show.palette import ITEM_COLOURS, ink_on
from brim.engine.injection import failing_launches
from brim.serve.http.page import FILES
from tests.integration.faults import out_of_memory
from tests.integration.served import Served, served, wait
from tests.integration.test_chat import engine_of
from tests.integration.test_serve_life import Slow, starting

KEYS = ("first-key", "second-key")
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Served]:
    with served(engine_of(copy=11, kv_tokens=2048), threads=True, api_keys=KEYS) as found:
        yield found
        assert found.is_empty()


def memory(tiny: Served, key: str = KEYS[0], after: int = 0) -> dict:
    found = httpx.get(f"{tiny.url}/v1/memory?after={after}", headers={"Authorization": f"Bearer {key}"})
    assert found.status_code == 200
    return found.json()


# -- files ---------------------------------------------------------------------------------------------------------


def test_the_page_needs_no_key_and_asks_nobody_else(tiny: Served) -> None:
    found = httpx.get(tiny.url)
    assert (found.status_code, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = found.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    named = re.findall(r'(?:src|href)="(/[^"#]*)"', found.text)
    assert {"/page/main.js", "/page/style.css"} <= set(named)
    for path in named:
        assert httpx.get(f"{tiny.url}{path}").status_code == 200, path
    again = httpx.get(tiny.url, headers={"If-None-Match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", sorted(FILES.iterdir()), ids=lambda path: path.name)
def test_no_file_names_another_place(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"\b(?:https?|wss?):|[\"'(]//|url\(|@import", text)
    assert all(name.startswith("./") for name in re.findall(r' from "([^"]+)"', text))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|cookie", text)
    assert "localStorage" not in text or path.name == "saved.js"
    assert "href" not in text or path.suffix == ".html"
    if path.suffix == ".html":
        assert not re.search(r"\son\w+=|style=|<script(?! type=\"module\" src)|javascript:", text)


def test_colours_are_those_of_the_terminal() -> None:
    css = (FILES / "parts.css").read_text(encoding="utf-8")
    for name, colour in ITEM_COLOURS.items():
        rule = re.search(rf"\.part-{name}(?:, [^{{]*)?\s*{{(.*?)}}", css, re.DOTALL)
        assert rule, name
        assert f"--fill: {colour};" in rule[1], name
        assert ("--ink: #ffffff" in rule[1]) == (ink_on(colour) == "#ffffff"), name


def test_paths_outside_of_the_page_are_not_served(tiny: Served) -> None:
    for path in ("/page/", "/page/../server.py", "/page/%2e%2e/server.py", "/page/nothing.js", "/page"):
        assert tiny.get(path).status_code == 404, path
        assert httpx.get(f"{tiny.url}{path}").status_code in (401, 404), path


# -- the ledger ----------------------------------------------------------------------------------------------------


def test_requests_are_listed_to_their_own_key_only(tiny: Served) -> None:
    with tiny.client() as client, client.stream("POST", "/v1/completions", json=LONG | {"n": 2}) as answer:
        lines = answer.iter_lines()
        next(lines)
        own, other = memory(tiny, KEYS[0])["requests"], memory(tiny, KEYS[1])["requests"]
    asked = [(one["id"], one["index"], one["path"], one["max_tokens"]) for one in own["active"]]
    assert asked == [(answer.headers["x-request-id"], number, "/v1/completions", 400) for number in (0, 1)]
    assert own["active"][0]["blocks"] > 0
    assert own["active"][0]["seconds"] >= 0
    assert own["others"] == {"count": 0, "blocks": 0}
    assert other["active"] == []
    assert other["others"]["count"] == 2
    assert tiny.is_empty()
    assert memory(tiny)["requests"]["active"] == []


def test_prompts_of_one_request_are_numbered(tiny: Served) -> None:
    body = LONG | {"prompt": ["One", "Two"]}
    with tiny.client() as client, client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        own = memory(tiny)["requests"]["active"]
    assert [one["id"] for one in own] == [f"{answer.headers['x-request-id']}/{number}" for number in (0, 1)]
    assert all(one["seconds"] is not None for one in own)


def test_the_ledger_has_a_bar_rates_and_events(tiny: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.post("/v1/completions", {"prompt": "Once", "max_tokens": 100, "ignore_eos": True})
    with failing_launches(tiny.engine, lambda plan: out_of_memory()):
        assert tiny.post("/v1/completions", {"prompt": "Once", "max_tokens": 3}).status_code == 500
    wait(lambda: {"rescue", "failed"} <= {event["kind"] for event in memory(tiny)["events"]})
    found = memory(tiny)
    assert sum(part["bytes"] for part in found["card"]["parts"]) == found["card"]["total_bytes"]
    names = [part["name"] for part in found["card"]["parts"]]
    assert [name for name in names if name.startswith("kv_")][-1] == "kv_free"
    drawn = found["samples"]["columns"].index("drawn_per_second")
    assert max(row[drawn] for row in found["samples"]["rows"]) > 0
    assert found["gate"]["state"] == "open"
    later = memory(tiny, after=found["last_number"])
    assert later["events"] == []
    assert len(later["samples"]["rows"]) < len(found["samples"]["rows"])
    assert tiny.get("/v1/memory?after=-1").status_code == 400


# -- plans ---------------------------------------------------------------------------------------------------------


def test_plans_come_from_a_process_of_their_own(tiny: Served) -> None:
    models = tiny.get("/v1/catalogue").json()["models"]
    assert any(one["name"] == "llama-3.1-8b" for one in models)
    found = tiny.post("/v1/plan", {"model": "llama-3.1-8b", "gpu": "h200", "engine": "vllm"})
    assert found.status_code == 200
    assert found.json()["shell"].startswith("PYTORCH_ALLOC_CONF=expandable_segments:True vllm serve ")
    refused = tiny.post("/v1/plan", {"model": "/etc/passwd", "gpu": "h200"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert httpx.post(f"{tiny.url}/v1/plan", json={}).status_code == 401
    odd = tiny.post("/v1/plan", {"model": "llama-3.1-8b", "gpu": "h200", "gpus": 7})
    assert odd.status_code == 400
    assert "7" in odd.json()["error"]["message"]


# -- brim top ------------------------------------------------------------------------------------------------------


def test_top_shows_the_server(
    tiny: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    asked = ["top", "--url", tiny.url, "--api-key", KEYS[0]]
    with tiny.client() as client, client.stream("POST", "/v1/completions", json=LONG) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert run([*asked, "--once"]) == 0
        shown = capsys.readouterr().out
    assert answer.headers["x-request-id"] in shown
    assert "tiny on CPU" in shown
    assert "kv_free" in shown
    assert "1 running, 0 waiting, 1 of 260 queue slots used" in shown
    assert run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["object"], found["servers"][0]["engine"]) == ("brim.memory", "brim")
    assert found["servers"][0]["generated_tokens"] > 0
    assert found["latency"]["between_tokens"]["p99_ms"] >= found["latency"]["between_tokens"]["p50_ms"] > 0


def test_top_says_what_is_wrong_in_one_line(
    tiny: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRIM_API_KEY", raising=False)
    server, url, ended = starting(Slow())
    for address, code, said in (
        ("http://127.0.0.1:1", 1, "no server answers at http://127.0.0.1:1"),
        (tiny.url, 1, "the API key is missing or wrong; give --api-key"),
        (f"{tiny.url}/health?", 1, "has no metrics of Brim, vLLM, SGLang or TGI"),
        (url, 1, "the model is being loaded (load (weights): 3 of 8)"),
        ("127.0.0.1:8000", 2, "is not an address"),
    ):
        assert run(["top", "--url", address]) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert run(["top", "--interval", "0"]) == 2
    server.stop()
    assert ended.result(60) == 0
