"""What clients write: read as it was meant, or refused by the name of the field."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.engine.requests.grammar import Grammar
from brim.engine.requests.params import SamplingParams
from brim.serve.http.parsing import parse_object
from brim.serve.problems import Problem
from brim.serve.requests.answer_format import AnswerForm
from brim.serve.requests.answer_request import AnswerRequest, sooner
from brim.serve.requests.chat import read_chat
from brim.serve.requests.completion import read_completion
from brim.serve.requests.media import Audio, Image
from brim.serve.requests.responses_api import read_response
from brim.serve.requests.types import ServedModel
from brim.serve.settings import RequestLimits

VOCAB = 300
MODEL = ServedModel("m", VOCAB, longest=1000)
HI = {"role": "user", "content": "Hi."}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SOUND = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}}


def chat(**fields: Any) -> Any:
    return read_chat({"messages": [HI], **fields}, replace(MODEL, limits=RequestLimits(images=2)))


def completion(body: Any) -> Any:
    return read_completion(body, MODEL)


def test_a_chat_request_is_read() -> None:
    asked = chat(
        model="m",
        temperature=0,
        stop="END",
        logit_bias={"5": -100},
        logprobs=True,
        top_logprobs=2,
        max_completion_tokens=7,
        seed=3,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        user="somebody",
        truncation="auto",
        deadline_seconds=2,
    )
    params = SamplingParams(
        max_tokens=7, temperature=0, stop=("END",), logit_bias=((5, -100),), logprobs=2, seed=3, n=2
    )
    assert asked.wanted == AnswerRequest("m", params, stream=True, include_usage=True, deadline_seconds=2)
    assert (asked.rolls, asked.room) == (True, 7)


def test_an_answer_of_open_length_may_fill_the_context_and_leaves_room_when_it_rolls() -> None:
    asked = chat()
    assert (asked.wanted.params.max_tokens, asked.room, asked.rolls) == (1000, 250, False)
    assert chat(max_tokens=900).room == 500  # half of the context at most: the rest is for the conversation


def test_messages_become_what_templates_take() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "a"},
        {"role": "user", "content": [PIXEL, {"type": "text", "text": "What is it?"}]},
    ]
    tools = [{"type": "function", "function": {"name": "add"}}]
    dialogue = chat(messages=messages, tools=tools).dialogue
    read = call | {"function": {"name": "add", "arguments": {"x": 1}}}
    assert [message.entry for message in dialogue.messages] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "", "tool_calls": [read]},
        {"role": "tool", "content": "2", "tool_call_id": "a"},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
    ]
    assert dialogue.images == (Image("data:image/png;base64,aGk=", "messages[4].content[0].image_url.url"),)
    assert [len(exchange) for exchange in dialogue.exchanges] == [3, 1]
    assert dialogue.tools == tuple(tools)
    assert chat(messages=messages, tools=tools, tool_choice="none").dialogue.tools == ()


def heard(part: dict[str, Any]) -> Any:
    return chat(messages=[{"role": "user", "content": [{"type": "text", "text": "What?"}, part]}]).dialogue


@pytest.mark.parametrize("kind", ["wav", "x-wav", "wave", "vnd.wave", "WAV"])
def test_audio_is_read_in_both_forms(kind: str) -> None:
    url = {"type": "audio_url", "audio_url": {"url": f"data:audio/{kind};base64,aGk="}}
    for part, path in ((SOUND, "input_audio.data"), (url, "audio_url.url")):
        dialogue = heard(part)
        assert dialogue.audios == dialogue.media == (Audio("aGk=", f"messages[0].content[1].{path}"),)
        assert dialogue.messages[0].entry["content"] == [{"type": "text", "text": "What?"}, {"type": "audio"}]


@pytest.mark.parametrize(
    ("inner", "field", "code"),
    [
        ({"format": "wav"}, "data", "missing_required_parameter"),
        ({"data": "aGk="}, "format", "missing_required_parameter"),
        ({"data": "aGk=", "format": "aiff"}, "format", "unsupported_value"),
        ({"data": 5, "format": "wav"}, "data", "invalid_type"),
        ({"data": "aGk=", "format": "wav", "rate": 8000}, "rate", "unknown_parameter"),
    ],
)
def test_audio_that_is_written_wrongly_is_refused(inner: dict[str, Any], field: str, code: str) -> None:
    with pytest.raises(Problem) as refused:
        heard({"type": "input_audio", "input_audio": inner})
    assert (refused.value.param, refused.value.code) == (f"messages[0].content[1].input_audio.{field}", code)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://example.org/a.wav", "remote_url_refused"),
        ("data:audio/aiff;base64,aGk=", "unsupported_value"),
        ("data:image/png;base64,aGk=", "invalid_value"),
        ("data:audio/wav,raw", "invalid_value"),
    ],
)
def test_audio_of_other_places_and_formats_is_refused(url: str, code: str) -> None:
    with pytest.raises(Problem) as refused:
        heard({"type": "audio_url", "audio_url": {"url": url}})
    assert (refused.value.param, refused.value.code) == ("messages[0].content[1].audio_url.url", code)


def test_a_call_or_a_schema_may_be_asked_for() -> None:
    sub = ADD | {"function": {"name": "sub"}}
    named = {"type": "function", "function": {"name": "sub"}}
    assert chat(tools=[ADD, sub]).tools.forced == ()
    assert chat(tools=[ADD, sub], tool_choice="required").tools.forced == ("add", "sub")
    only = chat(tools=[ADD, sub], tool_choice=named, parallel_tool_calls=False).tools
    assert (only.forced, only.several, only.forced_parameters) == (("sub",), False, {"sub": {"type": "object"}})
    assert chat(response_format={"type": "text"}).form is None
    by_object = chat(response_format={"type": "json_object"}).form
    assert by_object == AnswerForm(Grammar.json_schema({"type": "object"}), "response_format")
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "string"}, "strict": True}}
    assert chat(response_format=form).form.grammar == Grammar.json_schema({"type": "string"})


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "missing_required_parameter"),
        ({"messages": ["Hi."]}, "messages[0]", "invalid_type"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [HI | {"colour": 1}]}, "messages[0].colour", "unknown_parameter"),
        ({"messages": [{"role": "user", "content": [PIXEL] * 3}]}, "messages", "invalid_value"),
        ({"messages": [{"role": "user", "content": [SOUND] * 17}]}, "messages", "invalid_value"),
        ({"temperature": 300}, "temperature", "invalid_value"),
        ({"temperature": float("nan")}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": 2}, "logprobs", "invalid_type"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": "x"}}, "logit_bias", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"truncation": "middle"}, "truncation", "invalid_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [ADD], "tool_choice": "some"}, "tool_choice", "invalid_type"),
        (
            {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice",
            "invalid_value",
        ),
        ({"tools": [ADD, ADD]}, "tools", "invalid_value"),
        ({"tools": [ADD], "parallel_tool_calls": "no"}, "parallel_tool_calls", "invalid_type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"functions": []}, "functions", "unsupported_parameter"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"deadline_seconds": 0}, "deadline_seconds", "invalid_value"),
        ({"deadline_seconds": 10**400}, "deadline_seconds", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"metadata": "a"}, "metadata", "invalid_type"),
        ({"metadata": {"a": {"b": "c"}}}, "metadata", "invalid_type"),
        ({"metadata": {"a": "b" * 513}}, "metadata", "invalid_value"),
        ({"metadata": {"a" * 65: "b"}}, "metadata", "invalid_value"),
        ({"metadata": {"a": "\ud800"}}, "metadata", "invalid_value"),
        ({"metadata": {str(number): "b" for number in range(17)}}, "metadata", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        (
            {"messages": [HI, {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": 5}}]}]},
            "messages[1].tool_calls[0].function.arguments",
            "invalid_type",
        ),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(Problem) as refused:
        chat(**fields)
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)
    assert param.split(".")[-1].split("[")[0] in refused.value.message


def test_what_is_nested_too_deeply_is_refused_by_its_name() -> None:
    """Templates and grammars call themselves for each level."""
    deep: Any = {}
    for _ in range(70):
        deep = {"items": deep}
    form = {"type": "json_schema", "json_schema": {"name": "deep", "schema": deep}}
    tool = {"type": "function", "function": {"name": "add", "parameters": deep}}
    call = {"id": "a", "function": {"name": "add", "arguments": json.dumps(deep)}}
    far = {"id": "a", "function": {"name": "add", "arguments": "[" * 100_000}}  # no JSON: it stays a text
    for fields, param in (
        ({"response_format": form}, "response_format.json_schema.schema"),
        ({"tools": [tool]}, "tools[0].function.parameters"),
        (
            {"messages": [HI, {"role": "assistant", "tool_calls": [call]}]},
            "messages[1].tool_calls[0].function.arguments",
        ),
    ):
        with pytest.raises(Problem, match="nested more than 64 levels deep") as refused:
            chat(**fields)
        assert refused.value.param == param
    chat(messages=[HI, {"role": "assistant", "tool_calls": [far]}, HI])


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"properties": None}, "properties"),
        ({"properties": ["city"]}, "properties"),
        ({"required": 5}, "required"),
        ({"properties": {"city": {"enum": 5}}}, "properties.city.enum"),
    ],
)
def test_a_tools_schema_that_calls_could_not_be_written_by_is_refused(parameters: Any, field: str) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    with pytest.raises(Problem) as refused:
        chat(tools=[ADD, tool])
    assert (refused.value.status, refused.value.param) == (400, f"tools[1].function.parameters.{field}")


def test_what_was_meant_is_guessed() -> None:
    with pytest.raises(Problem, match="did you mean temperature"):
        chat(temprature=1)


@pytest.mark.parametrize("url", ["https://example.org/a.png", "file:///etc/passwd", "/etc/passwd"])
def test_nothing_is_fetched(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(Problem) as refused:
        chat(messages=[{"role": "user", "content": [part]}])
    assert refused.value.code == "remote_url_refused"


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_prompts_in_every_form(prompt: Any, read: Any) -> None:
    asked = completion({"prompt": prompt, "n": 3})
    assert asked.prompts == read
    assert asked.answers == 3 * len(read)
    assert asked.wanted.params.max_tokens == 16


def test_a_prompt_can_be_scored_alone() -> None:
    asked = completion({"prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 1})
    assert asked.scored_only
    params = SamplingParams(max_tokens=1, logprobs=1, prompt_logprobs=1, continues_prompt=True)
    assert asked.wanted.params == params
    for wrong, param in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": "\ud83d"}, "stop"),
        ({"stop": ["\N{GRINNING FACE}", "a\udc00"]}, "stop"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1], "a", True]}, "prompt[2]"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": ["a", [VOCAB]]}, "prompt[1]"),
        ({"prompt": [2**32]}, "prompt"),
    ):
        with pytest.raises(Problem) as refused:
            completion({"prompt": "a"} | wrong)
        assert refused.value.param == param


def test_metadata_is_repeated_by_a_response_and_bounded_everywhere() -> None:
    notes = {str(number): "b" * 512 for number in range(16)}
    asked = read_response({"input": "a", "metadata": notes}, MODEL, lambda name: None)
    assert asked.said_back["metadata"] == notes
    assert completion({"prompt": "a", "metadata": notes}).prompts == ("a",)
    with pytest.raises(Problem, match=r"^metadata: "):
        completion({"prompt": "a", "metadata": {"a": 5}})
    with pytest.raises(Problem, match=r"^metadata: "):
        read_response({"input": "a", "metadata": {"a": 5}}, MODEL, lambda name: None)


def test_the_sooner_deadline_counts() -> None:
    wanted = chat(deadline_seconds=5).wanted
    assert sooner(wanted, None).deadline_seconds == 5
    assert sooner(wanted, "2.5").deadline_seconds == 2.5
    assert sooner(wanted, "9").deadline_seconds == 5
    for wrong in ("soon", "-1", "nan", "inf"):
        with pytest.raises(Problem, match="positive"):
            sooner(wanted, wrong)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'"text"', b"nul"])
def test_a_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        parse_object(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")


_TEXT = st.text("aé5-\ud800\0", max_size=5)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_NAMES = (
    *("messages", "prompt", "temperature", "top_p", "n", "stop", "seed", "max_tokens", "logit_bias", "logprobs"),
    *("top_logprobs", "tools", "tool_choice", "stream", "stream_options", "truncation", "response_format"),
    *("modalities", "deadline_seconds", "echo", "best_of", "model", "stop_token_ids"),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(_NAMES), _JSON, max_size=4))
def test_whatever_is_sent_is_read_or_refused(fields: dict[str, Any]) -> None:
    for read in (lambda body: read_chat(body, MODEL), completion):
        for body in (fields, {"messages": [HI], "prompt": "a"} | fields):
            try:
                read(body)
            except Problem as problem:
                assert problem.status == 400  # noqa: PT017 - nothing else may be raised
                json.dumps(problem.body)


# -- how much of it ------------------------------------------------------------------------------------------------


def test_more_messages_than_tokens_are_refused_before_any_is_read() -> None:
    """The last one is no message at all, and nobody has come so far."""
    many = [HI] * 1000 + [5]
    with pytest.raises(Problem, match=r"^messages: its 1001 messages leave no room in the context of 1000") as refused:
        chat(messages=many)
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    with pytest.raises(Problem, match=r"^input: its 1001 messages leave no room"):
        read_response({"input": many}, MODEL, lambda name: None)
    with pytest.raises(Problem, match=r"^messages\[1000\]: it must be an object"):
        chat(messages=many, truncation="auto")  # what does not fit would be dropped


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": ""}] * 50},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}] * 50},
    ],
)
def test_parts_and_calls_of_all_messages_are_counted_together(message: dict[str, Any]) -> None:
    assert len(chat(messages=[message] * 20).dialogue.messages) == 20
    with pytest.raises(Problem, match=r"^messages: its 1050 parts and calls leave no room"):
        chat(messages=[message] * 21)


def test_a_server_takes_no_more_than_it_says_however_long_its_context_is() -> None:
    model = replace(MODEL, limits=RequestLimits(messages=10))
    for truncation in ("auto", "disabled"):
        with pytest.raises(Problem, match=r"^messages: it has 11 messages; at most 10 are taken"):
            read_chat({"messages": [HI] * 11, "truncation": truncation}, model)


def test_a_body_of_fifty_thousand_messages_is_refused_at_once() -> None:
    """Where one of a thousand is still read."""

    def seconds(count: int) -> float:
        began = time.perf_counter()
        with suppress(Problem):
            read_chat({"messages": [HI] * count}, replace(MODEL, longest=100_000))
        return time.perf_counter() - began

    assert min(seconds(50_000) for _ in range(3)) < 2 * min(seconds(1000) for _ in range(3))


def test_an_integer_may_be_written_as_a_number_with_nothing_behind_the_point() -> None:
    """As JSON schemas count, and clients in languages with one kind of number write."""
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5.0, "seed": 7.0, "stop_token_ids": [3.0]}
    params = read_chat(body, MODEL).wanted.params
    assert (params.max_tokens, params.seed, params.stop_token_ids) == (5, 7, (3,))
    assert all(type(one) is int for one in (params.max_tokens, params.seed, *params.stop_token_ids))
    with pytest.raises(Problem, match="max_tokens"):
        read_chat(body | {"max_tokens": 5.5}, MODEL)
