"""The page in a real Chromium, in front of a real server: what it shows, and that everybody can use it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from brim.engine.front.answers import Update
from brim.engine.injection import failing_launches
from tests.integration.browser import DESK, PHONE, Visit, chromium, visiting
from tests.integration.faults import out_of_memory
from tests.integration.page_server import ACCESSIBLE, fitted_tiny, looking
from tests.integration.served import Served, served
from tests.integration.test_serve_life import Slow, small, starting

LONG = {"prompt": "Once upon a time", "max_tokens": 150, "ignore_eos": True, "stream": True, "n": 2}
TEXTS = "document.querySelectorAll('#timeline text')"
PLANNED = "document.getElementById('plan-result').getAttribute('aria-busy') === 'false'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def tiny(browser: Any) -> Iterator[Served]:
    with fitted_tiny() as found:
        yield found


@contextmanager
def under_load(server: Served) -> Iterator[None]:
    """Two answers that are being written, slowly enough to be seen."""
    step = server.engine.step

    def slow() -> list[Update]:
        time.sleep(0.1)
        return step()

    with pytest.MonkeyPatch.context() as patched, server.client() as client:
        patched.setattr(server.engine, "step", slow)
        with client.stream("POST", "/v1/completions", json=LONG) as answer:
            lines = answer.iter_lines()
            next(lines)
            yield


# -- memory --------------------------------------------------------------------------------------------------------


def test_the_device_is_one_bar_that_adds_up(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny) as visit:
        parts = tiny.get("/v1/memory").json()["card"]["parts"]
        names = visit.page.eval_on_selector_all("#card .part", "nodes => nodes.map((node) => node.dataset.name)")
        assert names == [part["name"] for part in parts]
        assert {"weights", "kv_free", "activation", "canary"} <= set(names)
        widths = visit.page.eval_on_selector_all(
            "#card .part", "nodes => nodes.map((node) => node.getBoundingClientRect().width)"
        )
        whole = visit.page.eval_on_selector("#card", "node => node.clientWidth")
        total = sum(part["bytes"] for part in parts)
        for part, width in zip(parts, widths, strict=True):
            assert abs(width - whole * part["bytes"] / total) < 4, part
        said = visit.page.get_attribute("#card", "aria-label")
        assert said.startswith("Memory, 32.0 MiB: ")
        assert "Canary 4.0 MiB" in said
        assert visit.text("#device") == "CPU · 32.0 MiB"
        ledger = visit.text("#ledger")
        assert "Activations" in ledger
        assert "Canary\t4.0 MiB\t4.0 MiB\t0 %\t4.0 MiB" in ledger


def test_requests_and_rates_are_live(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny) as visit:
        assert "No request is running" in visit.text("#requests")
        with under_load(tiny):
            visit.until("document.querySelectorAll('#requests tbody code').length === 2")
            assert visit.text("#inside") == "2 running"
            assert "of 150" in visit.text("#requests")
            visit.until("document.querySelector('#card .part-kv_used') !== null")
            visit.until("Number(document.getElementById('rate').textContent) > 0")
            visit.until("document.getElementById('between').textContent.endsWith('ms')")
            assert visit.text("#between-more").startswith("p99 ")
            assert visit.text("#first").endswith(" s") or visit.text("#first").endswith("ms")


def test_what_happens_is_on_the_timeline(browser: Any, tiny: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with looking(browser, tiny) as visit:
        with failing_launches(tiny.engine, lambda plan: out_of_memory()):
            assert tiny.post("/v1/completions", {"prompt": "Once", "max_tokens": 3}).status_code == 500
        visit.until("document.querySelector('#timeline .mark-rescue') !== null")
        assert "ran out of memory" in visit.text("#events")
        lane = "(node) => node.getBoundingClientRect().y + node.getBoundingClientRect().height / 2"
        lanes = {
            name: visit.page.evaluate(f"({lane})([...{TEXTS}].find((one) => one.textContent === '{name}'))")
            for name in ("State", "Rescues")
        }
        for kind, name in (("state", "State"), ("rescue", "Rescues")):
            where = visit.page.evaluate(f"({lane})(document.querySelector('#timeline .mark-{kind}'))")
            assert abs(where - lanes[name]) < 8, (kind, where, lanes)
        visit.until("document.getElementById('state').textContent === 'degraded'")
        visit.picture("memory-after-a-rescue")


def test_nobody_is_asked_while_nobody_looks(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny) as visit:
        hide = "Object.defineProperty(document, 'hidden', {{get: () => {}, configurable: true}});"
        event = "document.dispatchEvent(new Event('visibilitychange'));"
        visit.page.evaluate(hide.format("true") + event)
        visit.page.wait_for_timeout(300)  # what was under way
        before = len(visit.asked)
        visit.page.wait_for_timeout(1500)
        assert len(visit.asked) == before
        visit.page.evaluate(hide.format("false") + event)
        visit.page.wait_for_timeout(500)
        assert len(visit.asked) > before


def test_marks_of_axes_are_round(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny) as visit:
        asked = [[1, 4], [3, 4], [7.2, 4], [254, 4], [1999, 4], [5, 2], [100_001, 2]]
        script = "asked => import('/page/timeline.js').then(({ ticks }) => asked.map((one) => ticks(...one)))"
        assert visit.page.evaluate(script, asked) == [
            [0, 1],
            [0, 1, 2, 3],
            [0, 2, 4, 6, 8],
            [0, 100, 200, 300],
            [0, 500, 1000, 1500, 2000],
            [0, 5],
            [0, 100_000, 200_000],
        ]
        times = visit.page.eval_on_selector_all("#timeline text", "nodes => nodes.map((node) => node.textContent)")
        assert "now" in times
        assert all(int(one[1:-2]) % 15 == 0 for one in times if one.startswith("−") and one.endswith(" s"))


# -- planner -------------------------------------------------------------------------------------------------------


def test_a_plan_follows_its_controls(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny, "planner") as visit:
        page = visit.page
        visit.until(PLANNED)
        assert visit.text("#plan-answer").startswith("Fits: ")
        first = visit.text("#plan-command")
        assert "vllm serve meta-llama/Llama-3.1-8B" in first
        page.fill("#plan-context", "4")
        visit.until("document.getElementById('plan-command').textContent.includes('--max-model-len 8192')")
        assert visit.text("#plan-context-said") == "8,192 tokens"
        page.select_option("#plan-kv", "fp8")
        visit.until("document.getElementById('plan-command').textContent.includes('fp8')")
        page.fill("#plan-concurrency", "11")
        visit.until("document.getElementById('plan-answer').dataset.fits === 'false'")
        assert "GiB short" in visit.text("#plan-answer")
        assert page.query_selector("#plan-bar .part-missing") is not None
        assert not page.is_visible("#plan-image")
        page.fill("#plan-concurrency", "0")
        page.select_option("#plan-model", "qwen2.5-vl-7b")
        assert page.is_visible("#plan-image")
        visit.until("document.querySelector('#plan-bar .part-encoder') !== null")
        large = visit.text("#plan-key")
        page.fill("#plan-image", "2")
        visit.until(f"document.getElementById('plan-key').innerText !== {json.dumps(large)}")
        page.click("#plan-advice button[aria-label^='Try weights']")
        visit.until("document.getElementById('plan-weights').value !== ''")
        visit.until(PLANNED)
        page.select_option("#plan-kv", "int8")
        visit.until("document.getElementById('plan-answer').textContent === 'No plan'")
        assert "vllm has no int8 KV cache" in visit.text("#plan-more")
        assert not page.is_visible("#plan-command")
        visit.problems.remove("Failed to load resource: the server responded with a status of 400 (Bad Request)")


def wait_for_plan(visit: Visit, field: str, value: str) -> None:
    """Until the address has a value, and the plan of it is there."""
    visit.until(f"new URLSearchParams(location.hash.split('?')[1]).get({json.dumps(field)}) === {json.dumps(value)}")
    visit.until(PLANNED)


def test_models_are_found_by_words(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny, "planner") as visit:
        page = visit.page
        visit.until(PLANNED)
        listed = "nodes => nodes.map((node) => node.value)"
        everything = page.eval_on_selector_all("#plan-model option", listed)
        page.fill("#plan-search", "llama 8b")
        assert page.input_value("#plan-model") == "llama-3.1-8b", "what matches stays chosen"
        found = page.eval_on_selector_all("#plan-model option", listed)
        assert 0 < len(found) < len(everything)
        assert visit.text("#plan-search-said") == f"{len(found)} of {len(everything)}"
        page.fill("#plan-search", "Qwen/Qwen3-30B-A3B")
        wait_for_plan(visit, "model", "qwen3-30b-a3b")
        assert "Qwen/Qwen3-30B-A3B" in visit.text("#plan-command") or not page.is_visible("#plan-command")
        page.fill("#plan-search", "no such model")
        assert visit.text("#plan-search-said").startswith("0 of ")
        assert page.input_value("#plan-model") == "qwen3-30b-a3b"
        page.fill("#plan-search", "")
        assert page.eval_on_selector_all("#plan-model option", listed) == everything


def test_a_link_reproduces_the_form(browser: Any, tiny: Served) -> None:
    asked = {
        "model": "qwen3-30b-a3b",
        "gpu": "h100-80gb",
        "gpus": "8",
        "engine": "vllm",
        "kv_dtype": "fp8",
        "batch_tokens": "3000",
        "graphs": "off",
        "pp": "2",
        "dp": "2",
        "ep": "true",
        "max_len": "12345",
        "concurrency": "3",
    }
    link = "planner?" + "&".join(f"{name}={value}" for name, value in asked.items())
    with looking(browser, tiny, "planner") as visit:
        visit.page.evaluate(f"location.hash = {json.dumps('#' + link)}")
        wait_for_plan(visit, "max_len", "12345")
        visit.until("document.getElementById('plan-command').textContent.includes('--data-parallel-size 2')")
        command = visit.text("#plan-command")
        for flag in ("--max-model-len 12345", "--pipeline-parallel-size 2", "--enable-expert-parallel"):
            assert flag in command
        assert visit.text("#plan-context-said") == "12,345 tokens"
        address = visit.page.evaluate("location.hash")
    with visiting(browser, f"{tiny.url}/{address}") as again:
        again.until(f"document.getElementById('plan-command').textContent === {json.dumps(command)}")
        assert again.page.evaluate("location.hash") == address
        said = dict(pair.split("=") for pair in address.partition("?")[2].split("&"))
        assert said == asked
        assert again.page.is_visible("#plan-pp")
        again.page.click("#tab-memory")
        assert again.page.evaluate("location.hash") == "#memory"
        again.page.click("#tab-planner")
        again.until(f"location.hash === {json.dumps(address)}")


def test_what_a_link_has_and_nobody_knows_is_said(browser: Any, tiny: Served) -> None:
    with visiting(browser, f"{tiny.url}/#planner?model=nobody-1b&gpu=h200&colour=red") as visit:
        visit.until("document.querySelectorAll('#plan-bar .part').length > 3")
        assert "model nobody-1b, colour red" in visit.text("#plan-unknown")
        assert visit.page.input_value("#plan-gpu") == "h200"


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "llama-3.3-70b", "gpu": "rtx-4090", "engine": "vllm", "max_len": "8192", "concurrency": "64"},
        {"model": "llama-3.3-70b", "gpu": "rtx-4090", "engine": "llama.cpp", "weights": "q4_0", "max_len": "8192"},
        {"model": "qwen3-30b-a3b", "gpu": "rtx-4090", "engine": "llama.cpp", "max_len": "32768"},
        {"model": "qwen2.5-vl-7b", "gpu": "rtx-4090", "engine": "sglang"},
        {"model": "llama-3.3-70b", "gpu": "h100-80gb", "gpus": "4", "pp": "2"},
    ],
)
def test_every_row_of_advice_can_be_tried(browser: Any, tiny: Served, asked: dict[str, str]) -> None:
    """Each fills the form with exactly what the row says, and the plan that follows is made of that."""
    link = "#planner?" + "&".join(f"{name}={value}" for name, value in asked.items())
    with looking(browser, tiny, link[1:]) as visit:
        visit.until("document.querySelectorAll('#plan-advice button').length > 2")
        visit.until(PLANNED)
        rows = visit.page.eval_on_selector_all("#plan-advice li", "nodes => nodes.length")
        for row in range(rows):
            visit.page.evaluate(f"location.hash = {json.dumps(link)}")
            visit.until(f"document.querySelectorAll('#plan-advice li').length === {rows}")
            visit.until(PLANNED)
            before = visit.page.evaluate("location.hash")
            label = visit.page.get_attribute(f"#plan-advice li:nth-child({row + 1}) button", "aria-label")
            with visit.page.expect_response(lambda response: response.url.endswith("/v1/plan")) as response:
                visit.page.click(f"#plan-advice li:nth-child({row + 1}) button")
            assert response.value.status == 200, label
            visit.until(PLANNED)
            after = visit.page.evaluate("location.hash")
            assert after != before, label
            value = label.rpartition(" ")[2]
            sent = json.loads(response.value.request.post_data)
            turned = {name for name in sent if str(sent[name]) != asked.get(name)}
            assert turned, label
            if "GPUs" not in label:
                assert value in {str(found) for found in sent.values()}, (label, sent)


# -- everybody -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tab", ["memory", "planner", "chat"])
def test_it_can_be_read_on_any_screen(browser: Any, tiny: Served, tab: str) -> None:
    with ExitStack() as stack:
        if tab == "memory":
            stack.enter_context(under_load(tiny))
        visit = stack.enter_context(looking(browser, tiny, tab, reduced_motion="reduce"))
        if tab == "memory":
            visit.until("document.querySelectorAll('#requests tbody code').length === 2")
        elif tab == "planner":
            visit.page.click("#plan-settings summary")
            visit.page.click("#plan-result summary")
        for scheme, viewport in product(("light", "dark"), (DESK, PHONE)):
            visit.page.emulate_media(color_scheme=scheme)
            visit.page.set_viewport_size(viewport)
            assert visit.page.evaluate(ACCESSIBLE) == [], (scheme, viewport)
            if (scheme == "light") == (viewport is DESK):
                visit.picture(f"{tab}-{scheme}-{viewport['width']}")


def test_a_verdict_is_above_its_form_on_a_phone(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny, "planner", viewport=PHONE) as visit:
        visit.until(PLANNED)
        verdict, form = (visit.page.locator(name).bounding_box() for name in ("#plan-answer", "#plan-form"))
        assert verdict["y"] < form["y"]
        visit.page.set_viewport_size(DESK)
        verdict, form = (visit.page.locator(name).bounding_box() for name in ("#plan-answer", "#plan-form"))
        assert verdict["x"] > form["x"] + form["width"]
        assert verdict["y"] < form["y"] + 60


def test_a_screen_reader_hears_what_is_shown(browser: Any, tiny: Served) -> None:
    """The tree that assistive software gets: landmarks, tabs, figures with their names, and the log of a chat."""
    with looking(browser, tiny) as visit:
        tree = visit.page.locator("body").aria_snapshot()
        for part in (
            'tablist "Views"',
            'tab "Memory" [selected]',
            "main",
            'heading "Time to first token"',
            "status",
            'img "Memory, 32.0 MiB',
        ):
            assert part in tree, part


def test_tabs_follow_the_keyboard(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny) as visit:
        page = visit.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "tab-memory"
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == "tab-planner"
        assert page.get_attribute("#tab-planner", "aria-selected") == "true"
        assert page.is_visible("#panel-planner")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        assert page.is_visible("#panel-chat")
        assert page.evaluate("location.hash") == "#chat"
        ring = page.evaluate("getComputedStyle(document.getElementById('chat-text')).outlineStyle")
        assert ring == "solid"


def test_a_key_is_asked_for_and_stays_in_the_tab(browser: Any) -> None:
    with served(small(), threads=True, api_keys=("right-key",)) as found, visiting(browser, found.url) as visit:
        page = visit.page
        page.wait_for_selector("#key-dialog[open]")
        assert page.evaluate(ACCESSIBLE) == []
        page.fill("#key-text", "wrong-key")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-wrong:not([hidden])")
        page.fill("#key-text", "right-key")
        page.keyboard.press("Enter")
        page.wait_for_selector("#live:not([hidden])")
        assert visit.text("#model") == "tiny"
        assert page.evaluate("Object.values(sessionStorage)") == ["right-key"]
        assert page.evaluate("localStorage.length") == 0
        assert page.context.cookies() == []
        found.server.stop()
        found.server.stop()
        visit.until("!document.getElementById('trouble').hidden")
        assert "does not answer" in visit.text("#trouble")


def test_a_start_shows_its_phase(browser: Any) -> None:
    server, url, ended = starting(Slow())
    with visiting(browser, url) as visit:
        visit.page.wait_for_selector("#starting:not([hidden])")
        assert visit.text("#phase") == "load (weights): 3 of 8"
        assert visit.text("#state") == "starting"
        assert visit.page.evaluate(ACCESSIBLE) == []
    server.stop()
    assert ended.result(60) == 0
