"""What chats tell their template, and how reasoning comes back, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")
pytest.importorskip("starlette")

from tests.integration.marked_models import marked_engine, saying
from tests.integration.served import Served, events, served

TEMPLATE = (
    "{% if style %}{{ style }}. {% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant{% if enable_thinking is defined and not enable_thinking %} at once"
    "{% endif %}: {% endif %}"
)
ASK = {"role": "user", "content": "Paris?"}
THOUGHT = "<think>\nHm.\n</think>\n\nYes."


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = marked_engine(tmp_path_factory.mktemp("marked"), TEMPLATE)
    with engine, served(engine, threads=True) as found:
        yield found
        assert found.is_empty()


def prompt(api: Served, **fields: Any) -> str:
    found = api.post("/tokenize", {"messages": [ASK], **fields})
    assert found.status_code == 200, found.text
    text: str = api.engine.tokenizer.decode(found.json()["tokens"])
    return text


def chat(api: Served, **fields: Any) -> dict[str, Any]:
    found = api.post("/v1/chat/completions", {"messages": [ASK], "max_tokens": 60, **fields})
    assert found.status_code == 200, found.text
    body: dict[str, Any] = found.json()
    return body


def test_a_template_gets_what_it_knows(api: Served) -> None:
    assert prompt(api) == "user: Paris?\nassistant: "
    assert prompt(api, chat_template_kwargs={"style": "short"}) == "short. user: Paris?\nassistant: "
    assert prompt(api, reasoning_effort="none") == "user: Paris?\nassistant at once: "
    assert prompt(api, reasoning={"effort": "high"}) == prompt(api)
    assert prompt(api, add_generation_prompt=False) == "user: Paris?\n"


def test_what_has_no_effect_is_said_in_the_answer(api: Served) -> None:
    said = "verbosity: the model's template does not know it; it has no effect"
    with saying(api, "Yes."):
        assert chat(api, verbosity="low")["brim"] == {"warnings": [said]}
        assert "brim" not in chat(api, reasoning_effort="low")
        rolled = chat(api, verbosity="low", truncation="auto")["brim"]
        answer = api.post("/v1/responses", {"input": "Paris?", "text": {"verbosity": "low"}}).json()
        with (
            api.client() as client,
            client.stream(
                "POST", "/v1/chat/completions", json={"messages": [ASK], "verbosity": "low", "stream": True}
            ) as response,
        ):
            first = events(response)[0]
    assert rolled == {"evicted_turns": 0, "evicted_tokens": 0, "warnings": [said]}
    assert answer["brim"] == first["brim"] == {"warnings": [said]}


def test_an_answer_goes_on_with_the_last_message(api: Served) -> None:
    begun = [ASK, {"role": "assistant", "content": "An apple a"}]
    assert prompt(api, messages=begun, continue_final_message=True) == "user: Paris?\nassistant: An apple a"
    with saying(api, " day"):
        found = chat(api, messages=begun, continue_final_message=True)
        echoed = chat(api, messages=begun, continue_final_message=True, echo=True)
    assert found["choices"][0]["message"]["content"] == " day"
    assert echoed["choices"][0]["message"]["content"] == "An apple a day"


def test_reasoning_is_shown_as_it_was_asked_for(api: Served) -> None:
    with saying(api, THOUGHT):
        apart = chat(api)["choices"][0]["message"]
        left_out = chat(api, include_reasoning=False)["choices"][0]["message"]
        within = chat(api, separate_reasoning=False)["choices"][0]["message"]
        body = {"messages": [ASK], "stream": True, "include_reasoning": False}
        with api.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
            deltas = [event["choices"][0]["delta"] for event in events(response)]
    assert apart == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm.", "reasoning": "Hm."}
    assert left_out == {"role": "assistant", "content": "Yes."}
    assert within == {"role": "assistant", "content": THOUGHT}
    assert not any("reasoning" in delta for delta in deltas)
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
