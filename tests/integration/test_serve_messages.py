"""`/v1/messages` over HTTP: answers whole and streamed, tools, thinking, stops, usage and errors in its shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")
pytest.importorskip("starlette")

from tests.integration.marked_models import TEMPLATE, marked_engine, saying
from tests.integration.served import SECONDS, Served, served

KEY = "a-key"
ASK = {"role": "user", "content": "Paris?"}
WEATHER = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
THOUGHT = "<think>\nHm.\n</think>\n\n"
ONE_INSTRUCTION = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
    "{% endfor %}"
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    engine = marked_engine(tmp_path_factory.mktemp("marked"), ONE_INSTRUCTION + TEMPLATE)
    with engine, served(engine, threads=True, api_keys=(KEY,)) as found:
        yield found
        assert found.is_empty()


def post(api: Served, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    body = {"model": "tiny", "messages": [ASK], "max_tokens": 200, **fields}
    return httpx.post(f"{api.url}{path}", json=body, headers=headers, timeout=SECONDS)


def ask(api: Served, **fields: Any) -> dict[str, Any]:
    found = post(api, **fields)
    assert found.status_code == 200, found.text
    body: dict[str, Any] = found.json()
    return body


def stream(api: Served, **fields: Any) -> list[dict[str, Any]]:
    """The events, each under the name of its type."""
    found = post(api, stream=True, **fields)
    assert found.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in found.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name.removeprefix("event: ") for name, _ in blocks] == [event["type"] for event in events]
    return events


def accumulated(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of events."""
    message: dict[str, Any] = {}
    written: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"] | {"content": []}
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                delta, block = dict(event["delta"]), message["content"][event["index"]]
                if delta.pop("type") == "input_json_delta":
                    written[event["index"]] = written.get(event["index"], "") + delta["partial_json"]
                else:
                    ((field, more),) = delta.items()
                    block[field] += more
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    for place, text in written.items():
        message["content"][place]["input"] = json.loads(text)
    return message


def unnamed(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {name: value for name, value in message.items() if name not in ("id", "usage")} | {"content": blocks}


def test_events_add_up_to_the_message(api: Served) -> None:
    with saying(api, f"{THOUGHT}Let me see.\n{CALL}\n{CALL}"):
        whole = ask(api, tools=[WEATHER], thinking={"type": "enabled", "budget_tokens": 1024})
        events = stream(api, tools=[WEATHER], thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    thinking, text, *calls = whole["content"]
    assert (thinking["thinking"], text["text"]) == ("Hm.", "Let me see.")
    assert thinking["signature"]
    assert [(call["name"], call["input"]) for call in calls] == [("weather", {"city": "Rome"})] * 2
    assert len({call["id"] for call in calls}) == 2
    assert (whole["stop_reason"], whole["stop_sequence"], whole["role"]) == ("tool_use", None, "assistant")
    assert whole["id"].startswith("msg_")
    assert unnamed(accumulated(events)) == unnamed(whole)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    assert sum(event.get("delta", {}).get("type") == "input_json_delta" for event in events) > 10


def test_results_of_tools_are_read_by_the_next_turn(api: Served) -> None:
    with saying(api, CALL):
        first = ask(api, tools=[WEATHER])
    result = {"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": "warm"}
    turns = [ASK, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    with saying(api, "It is warm."):
        assert ask(api, tools=[WEATHER], messages=turns)["content"] == [{"type": "text", "text": "It is warm."}]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_call_that_is_required_is_made(api: Served, choice: dict[str, Any]) -> None:
    token = api.engine.tokenizer.convert_tokens_to_ids("<think>")
    (block,) = ask(
        api,
        tools=[WEATHER],
        tool_choice=choice | {"disable_parallel_tool_use": True},
        logit_bias={str(token): -100},  # a random model would think for ever
        seed=3,
    )["content"]
    assert (block["type"], block["name"]) == ("tool_use", "weather")
    assert block["input"]["city"] in ("Paris", "Rome")


def test_why_an_answer_ended_is_said(api: Served) -> None:
    with saying(api, "one two three"):
        assert ask(api)["stop_reason"] == "end_turn"
        stopped = ask(api, stop_sequences=["nothing", " two"])
        assert accumulated(stream(api, stop_sequences=[" two"]))["stop_sequence"] == " two"
        assert ask(api, max_tokens=2)["stop_reason"] == "max_tokens"
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " two")
    assert stopped["content"] == [{"type": "text", "text": "one"}]
    long = ask(api, max_tokens=5000, logit_bias={str(one): -100 for one in api.engine.loaded.eos_ids})
    assert long["stop_reason"] == "model_context_window_exceeded"


def test_thinking_that_is_not_wanted_is_left_out(api: Served) -> None:
    with saying(api, f"{THOUGHT}Yes."):
        found = ask(api, thinking={"type": "disabled"})
    assert found["content"] == [{"type": "text", "text": "Yes."}]
    assert [said.partition(":")[0] for said in found["brim"]["warnings"]] == ["reasoning"]


def test_an_answer_follows_its_schema_and_goes_on_with_what_was_begun(api: Served) -> None:
    token = api.engine.tokenizer.convert_tokens_to_ids("<think>")
    form = {"type": "json_schema", "schema": WEATHER["input_schema"]}
    found = ask(api, output_config={"format": form}, logit_bias={str(token): -100}, seed=3)
    assert json.loads(found["content"][0]["text"])["city"] in ("Paris", "Rome")
    with saying(api, " two"):
        begun = ask(api, messages=[ASK, {"role": "assistant", "content": "one"}])
    assert begun["content"] == [{"type": "text", "text": " two"}]


def test_usage_says_what_was_found_again(api: Served) -> None:
    system = [{"type": "text", "text": "Be kind. " * 30, "cache_control": {"type": "ephemeral"}}]
    with saying(api, "Yes."):
        cold, warm = (ask(api, system=system)["usage"] for _ in range(2))
        events = stream(api, system=system)
    total = post(api, "/v1/messages/count_tokens", system=system, max_tokens=None).json()["input_tokens"]
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert sum(cold[name] for name in parts) == sum(warm[name] for name in parts) == total
    assert cold["cache_read_input_tokens"] == 0
    assert cold["cache_creation_input_tokens"] > 200
    assert warm["cache_read_input_tokens"] > 200
    assert cold["output_tokens"] == warm["output_tokens"] == accumulated(events)["usage"]["output_tokens"]
    assert events[0]["message"]["usage"]["input_tokens"] == total


def test_instructions_in_the_middle_are_gathered_for_templates_that_take_one(api: Served) -> None:
    turns = [ASK, {"role": "system", "content": "Be brief."}, ASK]
    gathered = [ASK, ASK]
    middle = post(api, "/v1/messages/count_tokens", messages=turns, system="Be kind.").json()
    first = post(api, "/v1/messages/count_tokens", messages=gathered, system="Be kind.\n\nBe brief.").json()
    assert abs(middle["input_tokens"] - first["input_tokens"]) < len("user: ") + 2  # two turns of the user are one


def test_traffic_of_a_coding_agent_is_taken(api: Served) -> None:
    tools = [
        WEATHER | {"name": f"tool_{number}", "description": "long " * 20, "cache_control": {"type": "ephemeral"}}
        for number in range(3)
    ]
    with saying(api, "Yes."):
        found = ask(
            api,
            system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            tools=tools,
            thinking={"type": "adaptive"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            output_config={"effort": "medium"},
            metadata={"user_id": "user_1_account__session_2"},
        )
    assert found["content"] == [{"type": "text", "text": "Yes."}]


def test_errors_are_of_anthropics_shape_wherever_they_come_from(api: Served) -> None:
    wrong = post(api, max_tokens=-1)
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
    assert wrong.json()["request_id"] == wrong.headers["request-id"] == wrong.headers["x-request-id"]
    found = {
        401: httpx.post(f"{api.url}/v1/messages", json={}, headers={"x-api-key": "no"}),
        404: post(api, model="other"),
        405: httpx.get(f"{api.url}/v1/messages", headers={"x-api-key": KEY}),
        415: httpx.post(f"{api.url}/v1/messages", content=b"a", headers={"authorization": f"Bearer {KEY}"}),
        400: post(api, "/v1/messages/count_tokens", messages=[]),
    }
    kinds = {401: "authentication_error", 404: "not_found_error"}
    for status, response in found.items():
        error = response.json()
        assert (response.status_code, error["type"]) == (status, "error")
        assert error["error"]["type"] == kinds.get(status, "invalid_request_error")
        assert error["error"]["message"]
    assert "param" in httpx.post(f"{api.url}/v1/chat/completions", json={}).json()["error"], "OpenAI's is as it was"
