"""Chats in Anthropic's spelling: read as the same chat, or refused by the name of the field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brim.engine.requests.grammar import Grammar
from brim.engine.requests.params import SamplingParams
from brim.serve.problems import Problem
from brim.serve.requests.answer_format import AnswerForm
from brim.serve.requests.chat import ReasoningShown
from brim.serve.requests.media import Image
from brim.serve.requests.messages import read_count_tokens, read_messages
from brim.serve.requests.sampling import AnswerRequest
from brim.serve.requests.template import TemplateSettings
from brim.serve.requests.types import ServedModel
from brim.serve.settings import RequestLimits

MODEL = ServedModel("m", 300, longest=1000)
HI = {"role": "user", "content": "Hi."}
HINT = {"cache_control": {"type": "ephemeral"}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "It rains.", "input_schema": PARAMETERS, **HINT}
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def read(**fields: Any) -> Any:
    return read_messages({"model": "m", "max_tokens": 7, "messages": [HI], **fields}, MODEL)


def entries(**fields: Any) -> list[Any]:
    return [one.entry for one in read(**fields).dialogue.messages]


def test_a_request_is_read() -> None:
    asked = read(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: 5"},
            {"type": "text", "text": "Be kind.", **HINT},
        ],
        tools=[WEATHER],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        stream=True,
        metadata={"user_id": "somebody"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        context_management={"edits": []},
        betas=["a"],
        service_tier="auto",
    )
    params = SamplingParams(max_tokens=7, temperature=0.5, top_k=3, top_p=0.9, stop=("END",))
    assert asked.wanted == AnswerRequest("m", params, stream=True, include_usage=True, deadline_seconds=None)
    assert (asked.tools.forced, asked.tools.several) == (("weather",), False)
    function = {"name": "weather", "description": "It rains.", "parameters": PARAMETERS}
    assert asked.dialogue.tools == ({"type": "function", "function": function},)
    assert asked.dialogue.template == TemplateSettings(effort="high", thinks=True)
    assert asked.form == AnswerForm(Grammar.json_schema({"type": "object"}), "output_config.format")
    assert [one.entry for one in asked.dialogue.messages] == [{"role": "system", "content": "Be kind."}, HI]


def test_blocks_become_what_templates_take() -> None:
    use = {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "5"}
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "warm"}, PIXEL], **HINT},
        {"type": "tool_result", "id": "b", "content": "no such city", "is_error": True},
        {"type": "text", "text": "And now?"},
    ]
    turns = [
        HI,
        {"role": "user", "content": [{"type": "text", "text": "Rome?", **HINT}]},
        {
            "role": "assistant",
            "content": [thought, {"type": "redacted_thinking", "data": "x"}, use, {**use, "id": "b"}],
        },
        {"role": "user", "content": results},
    ]
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    assert entries(messages=turns) == [
        {"role": "user", "content": "Hi.\nRome?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call | {"id": "a"}, call | {"id": "b"}],
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "content": [{"type": "text", "text": "warm"}, {"type": "image"}], "tool_call_id": "a"},
        {"role": "tool", "content": "Error: no such city", "tool_call_id": "b"},
        {"role": "user", "content": "And now?"},
    ]
    assert read(messages=turns).dialogue.images == (
        Image("data:image/png;base64,aGk=", "messages[3].content[0].content[1].source.data"),
    )


def test_an_assistants_turn_at_the_end_is_gone_on_with() -> None:
    begun = {"role": "assistant", "content": "The best answer is ("}
    assert read(messages=[HI, begun]).dialogue.template.continues
    assert not read(messages=[HI, begun, HI]).dialogue.template.continues


@pytest.mark.parametrize(
    ("choice", "forced", "offered", "several"),
    [
        ({"type": "auto"}, (), 1, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, (), 1, False),
        ({"type": "none"}, (), 0, True),
        ({"type": "tool", "name": "weather"}, ("weather",), 1, True),
    ],
)
def test_tool_choices_mean_what_they_mean(choice: Any, forced: tuple[str, ...], offered: int, several: bool) -> None:
    tools = read(tools=[WEATHER], tool_choice=choice).tools
    assert (tools.forced, len(tools.tools), tools.several) == (forced, offered, several)


@pytest.mark.parametrize(
    ("thinking", "thinks", "shown"),
    [
        (None, None, ReasoningShown.APART),
        ({"type": "adaptive"}, None, ReasoningShown.APART),
        ({"type": "adaptive", "display": "omitted"}, None, ReasoningShown.LEFT_OUT),
        ({"type": "disabled"}, False, ReasoningShown.LEFT_OUT),
    ],
)
def test_thinking_is_what_the_template_may_know(thinking: Any, thinks: bool | None, shown: ReasoningShown) -> None:
    asked = read(thinking=thinking)
    assert (asked.dialogue.template.thinks, asked.reasoning) == (thinks, shown)


def test_tokens_are_counted_of_the_same_fields() -> None:
    body = {"messages": [HI], "system": "Be kind.", "tools": [WEATHER], "thinking": {"type": "disabled"}}
    assert read_count_tokens(body, MODEL) == read(**body).dialogue


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "b"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"stop": ["a"]}, "stop"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"surprise": 1}, "surprise"),
        ({"model": "n"}, "model"),
    ],
)
def test_what_is_wrong_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Problem) as refused:
        read(**fields)
    assert refused.value.param == param
    body = refused.value.body_at("/v1/messages", "req-1")
    kind = "not_found_error" if param == "model" else "invalid_request_error"
    assert body == {"type": "error", "error": {"type": kind, "message": refused.value.message}, "request_id": "req-1"}


def test_parts_of_results_count_too_and_remote_images_follow_the_servers_rules() -> None:
    limits = RequestLimits(messages=4)
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "a"}] * 4}
    body = {"model": "m", "max_tokens": 7, "messages": [{"role": "user", "content": [result]}]}
    with pytest.raises(Problem, match="5 parts"):
        read_messages(body, replace(MODEL, limits=limits))
    url = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    with pytest.raises(Problem, match="--allow-remote-media") as refused:
        read(messages=[{"role": "user", "content": [url]}])
    assert refused.value.code == "remote_url_refused"
