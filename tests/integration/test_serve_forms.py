"""Tools, reasoning, JSON and `/v1/responses`, with the official client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest

pytest.importorskip("torch")
pytest.importorskip("llguidance")
pytest.importorskip("starlette")
pytest.importorskip("openai")

import openai
from pydantic import BaseModel, ConfigDict

from tests.integration.marked_models import marked_engine, saying
from tests.integration.served import Served, served

KEYS = ("first-key", "second-key")
ASK = [{"role": "user", "content": "Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "additionalProperties": False}}}
FLAT = [{"type": "function", **tool["function"]} for tool in (WEATHER, NOW)]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
THOUGHT = "<think>\nHm, é.\n</think>\n\n"


class Weather(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome"]
    warm: bool


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("marked")
    with marked_engine(folder) as engine, served(engine, threads=True, api_keys=KEYS) as found:
        yield found
        assert found.is_empty()


@pytest.fixture
def client(forms: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{forms.url}/v1", api_key=KEYS[0], max_retries=0) as made:
        yield made


def chat(client: Any, **options: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "tiny", "messages": ASK, "temperature": 1, "seed": 3, "max_tokens": 400, **options}
    )


def respond(client: Any, **options: Any) -> Any:
    return client.responses.create(
        **{"model": "tiny", "input": "Paris?", "max_output_tokens": 400, "extra_body": {"seed": 3}, **options}
    )


# -- tools and reasoning in chats ----------------------------------------------------------------------------------


def test_calls_and_reasoning_are_told_from_content(forms: Served, client: Any) -> None:
    with saying(forms, f"{THOUGHT}Let me see.\n{CALL}\n{CALL}"):
        answer = chat(client, tools=[WEATHER, NOW])
        chunks = list(chat(client, tools=[WEATHER, NOW], stream=True, stream_options={"include_usage": True}))
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.reasoning_content) == ("Let me see.", "Hm, é.")
    assert choice.finish_reason == "tool_calls"
    assert [call.function.name for call in choice.message.tool_calls] == ["weather"] * 2
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [{"city": "Rome"}] * 2
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("<\nHm, ee.\n<")
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Hm, é."
    calls: dict[int, list[str]] = {}
    for part in (part for delta in deltas for part in delta.tool_calls or ()):
        known = calls.setdefault(part.index, ["", "", ""])
        for place, more in enumerate((part.id, part.function.name, part.function.arguments)):
            known[place] += more or ""
    assert [known[1:] for known in calls.values()] == [["weather", '{"city": "Rome"}']] * 2
    assert sum(bool(delta.tool_calls) for delta in deltas) > 10, "arguments are streamed"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def test_without_tools_marks_are_no_text_and_calls_are_not_looked_for(forms: Served, client: Any) -> None:
    with saying(forms, f"A {CALL}"):
        assert chat(client).choices[0].message.content.startswith('A \n{"name"')
        assert chat(client, tools=[WEATHER], tool_choice="none").choices[0].message.tool_calls is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_required_is_made(forms: Served, client: Any, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "now"}}
    for seed, choice, names in ((1, "required", {"weather", "now"}), (2, named, {"now"})):
        options = {"tools": [WEATHER, NOW], "tool_choice": choice, "parallel_tool_calls": False, "seed": seed}
        found = _only_call(client, stream, logit_bias=at_once(forms), **options)
        assert found[0] in names
        assert json.loads(found[1]) in ({}, {"city": "Paris"}, {"city": "Rome"})


def at_once(forms: Served) -> dict[str, int]:
    """No reasoning: a random model would never come to its end."""
    return {str(forms.engine.tokenizer.convert_tokens_to_ids("<think>")): -100}


def _only_call(client: Any, stream: bool, **options: Any) -> tuple[str, str]:
    if not stream:
        (call,) = chat(client, **options).choices[0].message.tool_calls
        return call.function.name, call.function.arguments
    chunks = list(chat(client, stream=True, **options))
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()]
    return parts[0].function.name, "".join(part.function.arguments for part in parts)


def test_an_answer_follows_its_schema(forms: Served, client: Any) -> None:
    options = {"model": "tiny", "messages": ASK, "seed": 5, "temperature": 1, "logit_bias": at_once(forms)}
    answer = client.chat.completions.parse(response_format=Weather, **options)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    schema = {"name": "bad", "schema": {"type": "nonsense"}}
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, response_format={"type": "json_schema", "json_schema": schema})
    assert refused.value.param == "response_format"
    assert "nonsense" in str(refused.value)


def test_a_schema_that_takes_too_long_is_refused_by_its_field(client: Any) -> None:
    slow = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 999_983}}, "required": ["n"]}
    with pytest.raises(openai.BadRequestError, match="to compile; make it smaller") as refused:
        chat(client, response_format={"type": "json_schema", "json_schema": {"name": "slow", "schema": slow}})
    assert (refused.value.param, refused.value.code) == ("response_format", "invalid_value")


# -- responses -----------------------------------------------------------------------------------------------------


def test_a_response_is_the_answer_of_a_chat(forms: Served, client: Any) -> None:
    with saying(forms, "It is warm."):
        answer = respond(client, instructions="Be kind.", metadata={"a": "b"}, temperature=0.5)
        wanted = chat(client, messages=[{"role": "system", "content": "Be kind."}, *ASK])
    assert (answer.status, answer.output_text, answer.error) == ("completed", "It is warm.", None)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (
        wanted.usage.prompt_tokens,
        wanted.usage.completion_tokens,
    )
    assert (answer.instructions, answer.metadata, answer.temperature) == ("Be kind.", {"a": "b"}, 0.5)
    assert answer.id.startswith("resp_")


def test_events_add_up_to_the_response(forms: Served, client: Any) -> None:
    text = f"{THOUGHT}Let me see.\n{CALL}\n{CALL}"
    with saying(forms, text):
        whole = respond(client, tools=FLAT)
        with client.responses.stream(model="tiny", input="Paris?", tools=FLAT, max_output_tokens=400) as stream:
            events = list(stream)
            final = stream.get_final_response()
    kinds = [item.type for item in whole.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    assert whole.output[0].content[0].text == "Hm, é."
    assert whole.output_text == "Let me see."
    assert [json.loads(item.arguments) for item in whole.output[2:]] == [{"city": "Rome"}] * 2
    assert whole.usage.output_tokens_details.reasoning_tokens == 11

    def plain(response: Any) -> Any:
        return [
            item.model_dump(exclude={"id", "call_id", "parsed_arguments"}) | {"content": None}
            for item in response.output
        ]

    assert plain(final) == plain(whole)
    assert final.output_text == whole.output_text
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert [events[0].type, events[1].type, events[-1].type] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    spoken = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert spoken == "Let me see."


def test_a_message_of_a_response_has_the_scores_of_its_tokens(forms: Served, client: Any) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    with saying(forms, "It is é."):
        whole = respond(client, **asked)
        events = list(respond(client, stream=True, **asked))
        wanted = chat(client, logprobs=True, top_logprobs=2)
        plain = respond(client)
    (part,) = whole.output[0].content
    assert "".join(one.token for one in part.logprobs if one.bytes) == "It is ."  # parts of é have no text
    assert [(one.token, one.logprob) for one in part.logprobs] == [
        (one.token, one.logprob) for one in wanted.choices[0].logprobs.content
    ]
    assert all(len(one.top_logprobs) == 2 for one in part.logprobs)
    assert whole.top_logprobs == 2
    deltas = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert [one.token for one in deltas] == [one.token for one in part.logprobs][: len(deltas)]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert [one.token for one in done.logprobs] == [one.token for one in part.logprobs]
    assert not plain.output[0].content[0].logprobs


def test_reasoning_and_calls_have_no_scores(forms: Served, client: Any) -> None:
    with saying(forms, f"{THOUGHT}Let me see.\n{CALL}"):
        whole = respond(client, tools=FLAT, top_logprobs=0)
    (message,) = [item for item in whole.output if item.type == "message"]
    (part,) = message.content
    assert 0 < len(part.logprobs) <= len("Let me see.\n")
    assert whole.usage.output_tokens > len(part.logprobs)


def test_a_response_goes_on_from_a_stored_one(forms: Served, client: Any) -> None:
    with saying(forms, f"So. {CALL}"):
        first = respond(client, tools=FLAT)
    call = first.output[-1]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
    with saying(forms, "Noon."):
        second = respond(client, input=[output], tools=FLAT, previous_response_id=first.id)
        long_way = respond(
            client, tools=FLAT, input=[*ASK, *(item.model_dump(exclude_none=True) for item in first.output), output]
        )
        third = respond(client, input="And?", previous_response_id=second.id)
    assert second.usage.input_tokens == long_way.usage.input_tokens
    assert second.previous_response_id == first.id
    assert third.usage.input_tokens > second.usage.input_tokens - len("tool weather\ntool now\n")
    assert (
        third.usage.input_tokens_details.cached_tokens == 0 or third.usage.input_tokens_details.cached_tokens % 8 == 0
    )
    assert client.responses.retrieve(second.id).output_text == "Noon."
    with openai.OpenAI(base_url=f"{forms.url}/v1", api_key=KEYS[1], max_retries=0) as other:
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(second.id)
        with pytest.raises(openai.BadRequestError) as refused:
            respond(other, previous_response_id=second.id)
        assert refused.value.code == "previous_response_not_found"
    client.responses.delete(second.id)
    for gone in (second.id, "resp_nothing"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone)
        with pytest.raises(openai.NotFoundError):
            client.responses.delete(gone)


def test_what_is_not_stored_cannot_be_gone_on_from(forms: Served, client: Any) -> None:
    with saying(forms, "Yes."):
        answer = respond(client, store=False)
        streamed = list(respond(client, store=False, stream=True))[-1].response
    for one in (answer, streamed):
        assert one.store is False
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(one.id)


def test_a_response_that_is_cut_off_says_so(forms: Served, client: Any) -> None:
    with saying(forms, "It is warm."):
        answer = respond(client, max_output_tokens=5)
        events = list(respond(client, max_output_tokens=5, stream=True))
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"
    assert events[-1].type == "response.incomplete"
    assert answer.output_text == "It is"


def test_a_response_rolls_and_says_what_it_dropped(forms: Served, client: Any) -> None:
    old = [{"role": "user", "content": "one two three " * 9}, {"role": "assistant", "content": "red."}] * 12
    with pytest.raises(openai.BadRequestError) as refused:
        respond(client, input=[*old, *ASK])
    assert refused.value.code == "context_length_exceeded"
    with saying(forms, "Yes."):
        answer = respond(client, input=[*old, *ASK], truncation="auto", max_output_tokens=40)
    assert answer.truncation == "auto"
    assert answer.brim["evicted_turns"] > 0
    assert answer.brim["evicted_tokens"] > 0


def test_a_response_follows_its_schema(forms: Served, client: Any) -> None:
    form = {"type": "json_schema", "name": "Weather", "schema": Weather.model_json_schema(), "strict": True}
    extra = {"seed": 1, "logit_bias": at_once(forms)}
    answer = respond(client, text={"format": form}, extra_body=extra)
    assert answer.status == "completed"
    assert Weather.model_validate_json(answer.output_text)
    assert answer.text.format.schema_ == Weather.model_json_schema()
    with pytest.raises(openai.BadRequestError) as refused:
        respond(client, text={"format": form | {"schema": {"$ref": "#/no"}}})
    assert refused.value.param == "text.format"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "content": []}], "continue_final_message": True}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "king", "content": "Hi"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments"),
        ({"input": "Hi", "n": 2}, "n"),
        ({"input": "Hi", "background": 1}, "background"),
        ({"input": "Hi", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "Hi", "store": "yes"}, "store"),
    ],
)
def test_a_bad_request_for_a_response_is_refused_by_its_field(forms: Served, body: dict[str, Any], param: str) -> None:
    found = forms.post("/v1/responses", body)
    assert (found.status_code, found.json()["error"]["param"]) == (400, param)


# -- tools that take a text ----------------------------------------------------------------------------------------


RUN = {"name": "run", "description": "Runs a command."}
WRITTEN = '<tool_call>\n{"name": "run", "arguments": {"input": "ls \\"é\\"\\n"}}\n</tool_call>'


def grammar_tool(syntax: str, definition: str) -> Any:
    return {"type": "grammar", "syntax": syntax, "definition": definition}


def test_a_custom_tool_is_called_with_a_text(forms: Served, client: Any) -> None:
    tools = [{"type": "custom", "custom": RUN}, WEATHER]
    with saying(forms, f"{THOUGHT}{WRITTEN}\n{CALL}"):
        answer = chat(client, tools=tools)
        chunks = list(chat(client, tools=tools, stream=True))
        response = respond(client, tools=[{"type": "custom", **RUN}, *FLAT])
        with client.responses.stream(
            model="tiny", input="Paris?", tools=[{"type": "custom", **RUN}, *FLAT], max_output_tokens=400
        ) as stream:
            events = list(stream)
    custom, function = answer.choices[0].message.tool_calls
    assert (custom.type, custom.custom.name, custom.custom.input) == ("custom", "run", 'ls "é"\n')
    assert (function.type, function.function.name) == ("function", "weather")
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or () if part.index == 0]
    assert "".join((part.model_extra["custom"]).get("input", "") for part in parts) == 'ls "é"\n'
    assert len(parts) > 5, "it is streamed"
    assert [item.type for item in response.output] == ["reasoning", "custom_tool_call", "function_call"]
    assert (response.output[1].name, response.output[1].input) == ("run", 'ls "é"\n')
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done.input == 'ls "é"\n'


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        (grammar_tool("regex", "[ab]{3}"), "[ab]{3}"),
        (grammar_tool("lark", 'start: (A | B) "\\"" (A | B)\nA: "a"\nB: "b"'), '[ab]"[ab]'),
    ],
)
def test_the_text_of_a_custom_tool_follows_its_grammar(forms: Served, client: Any, form: Any, wanted: str) -> None:
    tool = {"type": "custom", "name": "run", "format": form}
    options = {"tools": [tool], "tool_choice": {"type": "custom", "name": "run"}, "parallel_tool_calls": False}
    answer = respond(client, extra_body={"seed": 3, "logit_bias": at_once(forms)}, **options)
    (item,) = answer.output
    assert (item.type, item.name) == ("custom_tool_call", "run")
    assert re.fullmatch(wanted, item.input)
    nested = {"type": "grammar", "grammar": {"syntax": form["syntax"], "definition": form["definition"]}}
    called = chat(
        client,
        tools=[{"type": "custom", "custom": {"name": "run", "format": nested}}],
        tool_choice={"type": "custom", "custom": {"name": "run"}},
        parallel_tool_calls=False,
        logit_bias=at_once(forms),
    )
    assert called.choices[0].finish_reason == "tool_calls"
    assert re.fullmatch(wanted, called.choices[0].message.tool_calls[0].custom.input)


def test_a_grammar_that_is_none_is_refused_by_its_field(client: Any) -> None:
    tool = {"type": "custom", "name": "run", "format": grammar_tool("lark", "start: nothing")}
    with pytest.raises(openai.BadRequestError, match="nothing") as refused:
        respond(client, tools=[tool], tool_choice={"type": "custom", "name": "run"})
    assert refused.value.param == "tools"


def test_one_of_the_tools_that_are_allowed_is_called(forms: Served, client: Any) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    (call,) = (
        chat(
            client,
            tools=[WEATHER, NOW],
            tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
            parallel_tool_calls=False,
            logit_bias=at_once(forms),
        )
        .choices[0]
        .message.tool_calls
    )
    assert call.function.name == "now"
