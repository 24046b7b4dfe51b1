"""Bodies are declared once: what the schema allows is read, what it does not is refused, and the field is named."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.serve.problems import Problem
from brim.serve.requests import types as t
from brim.serve.requests.chat import ChatBody, read_chat
from brim.serve.requests.completion import CompletionBody, read_completion
from brim.serve.requests.plan import PlanQuery
from brim.serve.requests.responses_api import ResponseBody, read_response

MODEL = t.ServedModel("m", vocab=300, longest=1000)
SOUND = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
PIXEL = "data:image/png;base64,aGk="
SHARED = {
    "model": "m",
    "stream": True,
    "deadline_seconds": 2,
    "priority": 3,
    "metadata": {"a": "b"},
    "temperature": 0.5,
    "top_k": 3,
    "repetition_penalty": 1.1,
    "ignore_eos": True,
    "stop": ["x", "y"],
    "user": "u",
}
CHAT = {
    **SHARED,
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, SOUND], "name": "n"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "2", "tool_call_id": "a"},
    ],
    "max_tokens": 5,
    "truncation": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"required": ["c"]}}}],
    "stream_options": {"include_usage": True},
}
RESPONSE = {
    **SHARED,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, SOUND]},
        {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}], "summary": []},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "a", "id": "x"},
        {"type": "function_call_output", "call_id": "a", "output": "o"},
    ],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    "include": ["message.output_text.logprobs"],
    "tools": [{"type": "function", "name": "f"}],
    "n": 1,
}
PLAN = {"model": "llama-3.1-8b", "gpu": "h200", "gpus": 2, "max_len": 100, "kv_dtype": "fp8", "engine": "vllm"}
READERS: Mapping[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "chat": (CHAT, ChatBody, lambda body: read_chat(body, MODEL)),
    "completion": (SHARED | {"prompt": "a"}, CompletionBody, lambda body: read_completion(body, MODEL)),
    "response": (RESPONSE, ResponseBody, lambda body: read_response(body, MODEL, lambda name: None)),
    "plan": (PLAN, PlanQuery, lambda body: PlanQuery.read_body(body, MODEL)),
}
VALUES: tuple[Any, ...] = (None, True, 0, -1, 2**40, 1.5, "", "x", "text", [], ["x"], [1], [{}], {}, {"x": 1})
FIELDS = ("surprise", "audio", "verbosity", "function_call", "reasoning", "type")
# The engine or the model's template says no, which a schema of one body cannot; and names that agree with others.
BEYOND = ("prompt", "previous_response_id", "tool_choice", "stream_options", "tools", "stream")


def conforms(body: Any, declared: type[t.JsonObject]) -> bool:
    """Whether the schema allows it."""
    validator = pytest.importorskip("jsonschema_rs")
    return bool(validator.is_valid(declared.openapi(MODEL), body))


def places(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for name, value in inner:
        yield (*path, name)
        yield from places(value, (*path, name))


@settings(deadline=None, max_examples=300)
@given(st.data())
@pytest.mark.parametrize("name", list(READERS))
def test_the_reader_takes_what_the_schema_allows(name: str, data: st.DataObject) -> None:
    body, declared, read = READERS[name]
    changed = copy.deepcopy(body)
    *outer, last = data.draw(st.sampled_from(list(places(body))))
    at = changed
    for step in outer:
        at = at[step]
    if isinstance(at, dict) and data.draw(st.booleans()):
        last = data.draw(st.sampled_from(FIELDS))
    at[last] = data.draw(st.sampled_from(VALUES))
    refused: Problem | None = None
    try:
        read(changed)
    except Problem as problem:
        refused = problem
    allowed = conforms(changed, declared)
    if refused is None:
        assert allowed or "prompt" in (last, *outer), changed
        return
    assert refused.param is not None
    assert refused.message.startswith(refused.param)
    assert not allowed or refused.param.split(".")[0].split("[")[0] in BEYOND, refused.message


def test_the_bodies_as_they_are_written_are_read() -> None:
    for body, declared, read in READERS.values():
        assert read(body)
        assert conforms(body, declared)


@dataclass(frozen=True, slots=True)
class Inner(t.JsonObject):
    url: str = t.required(t.text(most=5))
    IGNORED = ("detail",)


@dataclass(frozen=True, slots=True)
class Outer(t.JsonObject):
    count: int = t.required(t.integer(1, 9))
    inner: Inner | None = t.optional(t.record(Inner, needs="a url"))
    kinds: tuple[Any, ...] = t.optional(
        t.listed(t.tagged({"a": t.wrapped("a", t.TEXT), "b": t.meaning("nothing")})), default=()
    )
    first: str | None = t.optional(t.TEXT)
    others: tuple[str, ...] = t.optional(t.listed(t.TEXT), default=())
    UNSUPPORTED = ("later",)
    ONE_NEEDED = ("first", "others")


def test_an_object_is_read_by_its_declaration() -> None:
    found = {"count": 3, "inner": {"url": "u", "detail": 5}, "kinds": [{"type": "a", "a": "x"}, {"type": "b"}]}
    assert Outer.read_body(found | {"first": "f", "later": None}, MODEL) == Outer(
        count=3, inner=Inner("u"), kinds=("x", "nothing"), first="f"
    )


@pytest.mark.parametrize(
    ("changed", "said", "code"),
    [
        ({"count": None}, "count: it is missing", "missing_required_parameter"),
        ({"count": 10}, "count: 10 is not from 1 to 9", "invalid_value"),
        ({"count": True}, "count: it must be an integer, not true or false", "invalid_type"),
        ({"inner": {}}, "inner: it needs a url", "missing_required_parameter"),
        ({"inner": {"url": "123456"}}, "inner.url: it has 6 characters; at most 5 are taken", "invalid_value"),
        ({"inner": {"url": "u", "size": 1}}, "inner.size: there is no such field", "unknown_parameter"),
        ({"kinds": [{"type": "b"}, {"a": "x"}]}, "kinds[1].type: it must be one of a, b", "missing_required_parameter"),
        ({"kinds": [{"type": "c"}]}, "kinds[0].type: 'c' is not supported", "unsupported_value"),
        ({"first": None, "others": []}, "first: it is missing", "missing_required_parameter"),
        ({"later": 1}, "later: it is not supported yet; leave it out", "unsupported_parameter"),
        ({"cuont": 1}, "cuont: there is no such field; did you mean count", "unknown_parameter"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(changed: dict[str, Any], said: str, code: str) -> None:
    with pytest.raises(Problem) as refused:
        Outer.read_body({"count": 3, "first": "f"} | changed, MODEL)
    assert refused.value.message.startswith(said)
    assert (refused.value.param, refused.value.code) == (said.split(":")[0], code)
