"""The page's chat in a real Chromium: Markdown, images, what is kept, and who can use it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from tests.integration.browser import DESK, PHONE, Visit, chromium
from tests.integration.page_server import ACCESSIBLE, CONTEXT, fitted_tiny, looking
from tests.integration.served import Served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def tiny(browser: Any) -> Iterator[Served]:
    with fitted_tiny() as found:
        yield found


def test_a_conversation_streams_and_rolls(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny, "chat") as visit:
        page = visit.page
        page.fill("#chat-temperature", "0")
        page.fill("#chat-tokens", "24")
        for number in range(1, 5):
            page.fill("#chat-text", "My name is Ada. What is my name?" + " I like the sea." * (8 * (number > 1)))
            page.press("#chat-text", "Enter")
            visit.until(f"document.querySelectorAll('.turn .cost').length === {number}")
            if number == 1:
                assert "Ada" in visit.text(".turn.assistant")
                assert "completion tokens" in visit.text(".turn.assistant .cost")
                assert page.query_selector(".turn.dropped") is None
        visit.until("document.querySelector('.cut') !== null")
        dropped = page.eval_on_selector_all(".turn.dropped", "nodes => nodes.length")
        assert visit.text(".cut").startswith(f"{dropped} messages above")
        assert f"of {CONTEXT} tokens of context" in visit.text("#context-said")
        assert page.evaluate("document.activeElement.id") == "chat-text"
        visit.picture("chat")
        page.fill("#chat-text", "word " * 400)
        page.press("#chat-text", "Enter")
        visit.until("document.querySelector('.turn .wrong') !== null")
        assert "Not answered: messages: " in visit.text(".turn .wrong")
        assert page.input_value("#chat-text").startswith("word word"), "it can be sent again"
        visit.problems.remove("Failed to load resource: the server responded with a status of 400 (Bad Request)")
        page.click("#chat-clear")
        assert page.eval_on_selector_all(".turn", "nodes => nodes.length") == 0


def answering(visit: Visit, *answers: str) -> None:
    """The server's part of a conversation, made by hand: each answer comes in small pieces."""
    left = list(answers)

    def reply(route: Any) -> None:
        text = left.pop(0)
        deltas = [{"content": text[at : at + 7]} for at in range(0, len(text), 7)]
        events = [{"choices": [{"delta": delta}]} for delta in [{"reasoning_content": "hm <b>"}, *deltas]]
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 0}}
        events.append({"choices": [], "usage": usage})
        body = "".join(f"data: {json.dumps(one)}\n\n" for one in events) + "data: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    visit.page.route("**/v1/chat/completions", reply)


def say(visit: Visit, text: str) -> None:
    told = visit.page.eval_on_selector_all(".turn .cost", "nodes => nodes.length")
    visit.page.fill("#chat-text", text)
    visit.page.press("#chat-text", "Enter")
    visit.until(f"document.querySelectorAll('.turn .cost').length === {told + 1}")


MARKDOWN = """# Title
Some **bold**, *soft* and `code <b>` with snake_case_name and 2 * 3 * 4.

- one
- two
  1. inner
  2. more **bold**

```python
def f(a):
    return "<script>"
```
| a | b |
| --- | --- |
| 1 | `2` |

> said [here](javascript:alert(1)) and ![it](http://evil.example/x.png)

<img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>
"""


def test_answers_are_markdown_and_never_markup(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny, "chat") as visit:
        answering(visit, MARKDOWN)
        say(visit, "Show <b>all</b> of **it**")
        page = visit.page
        assert visit.text(".turn.user .said") == "Show <b>all</b> of **it**"
        shape = page.eval_on_selector_all(".turn.assistant .said *", "nodes => nodes.map((node) => node.tagName)")
        assert not {"IMG", "SCRIPT", "A", "B"} & set(shape)
        for name in ("H3", "STRONG", "EM", "UL", "OL", "PRE", "TABLE", "BLOCKQUOTE", "DETAILS", "CODE"):
            assert name in shape, name
        assert visit.text(".turn.assistant pre") == 'def f(a):\n    return "<script>"'
        assert page.eval_on_selector_all(".said ul > li", "nodes => nodes.length") == 2
        assert page.eval_on_selector_all(".said ol > li", "nodes => nodes.map((node) => node.innerText)") == [
            "inner",
            "more bold",
        ]
        said = visit.text(".turn.assistant .said")
        for part in ("snake_case_name", "2 * 3 * 4", "here (javascript:alert(1))", "<img src=x onerror="):
            assert part in said, part
        assert "owned" not in page.title()
        assert page.evaluate(ACCESSIBLE) == []
        for scheme, viewport in product(("light", "dark"), (DESK, PHONE)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size(viewport)
            assert page.evaluate(ACCESSIBLE) == [], (scheme, viewport)
            visit.picture(f"chat-markdown-{scheme}-{viewport['width']}")


@pytest.mark.parametrize(
    "text", ["*" * 20_000, "[" * 20_000, "`" * 20_001, "> " * 5000, "- " * 5000, "|" * 20_000 + "\n|-|", "**a" * 7000]
)
def test_no_text_takes_long_to_be_shown(browser: Any, tiny: Served, text: str) -> None:
    with looking(browser, tiny, "chat") as visit:
        script = """(text) => import('/page/markdown.js').then(({ markdown }) => {
            const began = performance.now();
            markdown(text);
            return performance.now() - began;
        })"""
        took = visit.page.evaluate(script, text)
        assert took < 2000


def test_a_conversation_survives_a_reload_until_it_is_cleared(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny, "chat") as visit:
        page = visit.page
        assert "toy" in visit.text("#chat-toy")
        page.fill("#chat-temperature", "0")
        page.click("#chat-examples button:has-text('3 plus 4')")
        visit.until("document.querySelectorAll('.turn .cost').length === 1")
        before = visit.text("#transcript")
        assert "7" in before
        page.reload()
        visit.until("document.querySelectorAll('.turn .cost').length === 1")
        assert visit.text("#transcript") == before
        assert not page.is_visible("#chat-empty")
        say(visit, "What is 2 plus 2?")
        sent = page.evaluate("JSON.parse(localStorage.getItem('brim-chat')).turns.map((one) => one.role)")
        assert sent == ["user", "assistant"] * 2
        page.click("#chat-clear")
        assert page.evaluate("localStorage.length") == 0
        assert page.is_visible("#chat-examples")
        page.reload()
        visit.until("document.querySelectorAll('#chat-examples button').length > 2")
        assert page.query_selector(".turn") is None
        for broken in ("no json", "[]", '{"model":"brim-tiny","turns":[{"role":"system"},5,null]}', '{"turns":7}'):
            page.evaluate("(text) => localStorage.setItem('brim-chat', text)", broken)
            page.reload()
            visit.until("document.querySelectorAll('#chat-examples button').length > 2")
            assert page.query_selector(".turn") is None


def test_what_is_kept_of_a_conversation_is_bounded(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny, "chat") as visit:
        script = """() => import('/page/saved.js').then(({ save, load }) => {
            const image = 'data:image/png;base64,' + 'A'.repeat(900000);
            const turn = (n) => ({ role: 'user', content: `${n}${'x'.repeat(30000)}`, images: n > 147 ? [image] : [] });
            const turns = Array.from({ length: 150 }, (_, n) => turn(n));
            const kept = save('m', turns);
            const found = load('m');
            const size = localStorage.getItem('brim-chat').length;
            return [kept, found.length, found.at(-1).content.slice(0, 3), size, load('other').length];
        })"""
        kept, count, newest, size, others = visit.page.evaluate(script)
        assert (kept, newest, others) == (True, "149", 0)
        assert 10 < count <= 100
        assert size < 2_500_000


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_images_are_attached_pasted_and_sent(browser: Any, tiny: Served) -> None:
    """With a model that takes them, as far as the page knows; its answers are made by hand."""
    with looking(browser, tiny, "memory") as visit:
        page = visit.page
        model = {"id": "brim-tiny", "max_model_len": 192, "input_modalities": ["text", "image"]}
        page.route("**/v1/models", lambda route: route.fulfill(json={"data": [model]}))
        answering(visit, "A red square.")
        page.click("#tab-chat")
        page.wait_for_selector("#chat-attach:not([hidden])")
        blank = "const made = document.createElement('canvas'); [made.width, made.height] = [3000, 1500];"
        large = page.evaluate(f"() => {{ {blank} return made.toDataURL('image/png').split(',')[1]; }}")
        files = [
            {"name": "one.png", "mimeType": "image/png", "buffer": base64.b64decode(PIXEL)},
            {"name": "large.png", "mimeType": "image/png", "buffer": base64.b64decode(large)},
            {"name": "broken.png", "mimeType": "image/png", "buffer": b"no image"},
        ]
        page.set_input_files("#chat-files", files)
        visit.until("document.querySelectorAll('#chat-attached canvas').length === 2")
        visit.until("document.getElementById('chat-attached-said').textContent.includes('cannot be read')")
        paste = """(data) => {
            const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
            const given = new DataTransfer();
            given.items.add(new File([bytes], 'p.png', { type: 'image/png' }));
            const pasted = new ClipboardEvent('paste', { clipboardData: given, bubbles: true, cancelable: true });
            document.getElementById('chat-text').dispatchEvent(pasted);
        }"""
        page.evaluate(paste, PIXEL)
        visit.until("document.querySelectorAll('#chat-attached canvas').length === 3")
        assert page.evaluate(ACCESSIBLE) == []
        page.click("[aria-label='Remove image 1']")
        visit.until("document.querySelectorAll('#chat-attached canvas').length === 2")
        drawn = "(one) => one.width !== one.height || one.width === 1"
        visit.until(f"[...document.querySelectorAll('#chat-attached canvas')].every({drawn})")
        visit.picture("chat-images")
        page.fill("#chat-text", "What is it?")
        with page.expect_request("**/v1/chat/completions") as request:
            page.press("#chat-text", "Enter")
        parts = json.loads(request.value.post_data)["messages"][0]["content"]
        assert [one["type"] for one in parts] == ["image_url", "image_url", "text"]
        kinds = [one["image_url"]["url"].partition(";")[0] for one in parts[:2]]
        assert kinds == ["data:image/jpeg", "data:image/png"], "what is large is made smaller"
        visit.until("document.querySelectorAll('.turn.user canvas').length === 2")
        visit.until("document.querySelectorAll('.turn .cost').length === 1")
        assert not page.is_visible("#chat-attached")
        page.reload()
        visit.until("document.querySelectorAll('.turn.user canvas').length === 2")


def test_a_model_that_takes_text_only_offers_no_images(browser: Any, tiny: Served) -> None:
    assert tiny.get("/v1/models").json()["data"][0]["input_modalities"] == ["text"]
    with looking(browser, tiny, "chat") as visit:
        visit.until("document.querySelectorAll('#chat-examples button').length > 2")
        assert not visit.page.is_visible("#chat-attach")


def test_a_screen_reader_hears_a_conversation(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny, "chat") as visit:
        answering(visit, "Hello **there**")
        say(visit, "Hi")
        tree = visit.page.locator("#panel-chat").aria_snapshot()
        for part in (
            'log "Conversation"',
            "You:",
            "Model:",
            "strong: there",
            'textbox "Message"',
            'button "Send"',
            'button "Clear"',
        ):
            assert part in tree, (part, tree)


def test_a_chat_is_had_with_the_keyboard_alone(browser: Any, tiny: Served) -> None:
    with looking(browser, tiny, "chat") as visit:
        page = visit.page
        visit.until("document.querySelectorAll('#chat-examples button').length > 2")
        page.focus("#chat-clear")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "transcript"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('#chat-examples') !== null")
        page.keyboard.press("Enter")
        visit.until("document.querySelectorAll('.turn .cost').length === 1")
        assert page.evaluate("document.activeElement.id") == "chat-text"
