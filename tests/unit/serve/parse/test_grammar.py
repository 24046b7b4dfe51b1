"""Grammars of answers: whatever is drawn at random from one, the format's own parser finds what was asked for."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("llguidance")
pytest.importorskip("transformers")

import numpy as np

from brim.engine.front.detokenise import TextStream
from brim.engine.front.grammars import Grammars
from brim.engine.requests.grammar import Grammar
from brim.serve.parse.grammar import calls_answer, formed_answer
from brim.serve.parse.pieces import Answered, whole
from brim.serve.parse.table import PLAIN_JSON, REASONING_FORMATS, TOOL_FORMATS, Formats
from brim.serve.problems import Problem
from tests.unit.serve.parse.marked import marked_tokenizer

TOOLS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}
REASONING = [None, *(one.name for one in REASONING_FORMATS)]


def drawn(grammar: Grammar, tokenizer: Any, formats: Formats, seed: int) -> str:
    """A text of the grammar, drawn at random; closing marks are preferred, so that it ends."""
    rng = random.Random(seed)
    grammars = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    constraint = grammars.start(grammar)
    stream = TextStream(tokenizer, (), shown=formats.shown(True))
    text = ""
    for _ in range(600):
        allowed = np.unpackbits(constraint.allowed, bitorder="little").nonzero()[0]
        marks = [token for token in allowed if token >= 256]  # letters come first in the vocabulary
        token = int(rng.choice(marks if marks and rng.random() < 0.5 else allowed))
        if token == tokenizer.eos_token_id:
            return text + stream.close()
        text += stream.push(token)
        assert constraint.take(token) is None
    raise AssertionError(f"it does not end: {text[:300]!r}")


def answered(formats: Formats, text: str, tail: str) -> Answered:
    reader = formats.reader(TOOLS, tail)
    return whole(reader.feed(text) + reader.close())


def made(tools: str | None, reasoning: str | None, **options: Any) -> tuple[Any, Formats]:
    names = [name for name in (tools, reasoning) if name is not None]
    tokenizer = marked_tokenizer(*names, **options)
    return tokenizer, Formats.of(tokenizer, tools or "none", reasoning or "none")


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("reasoning", [None, "think"])
@pytest.mark.parametrize("name", [*(one.name for one in TOOL_FORMATS), PLAIN_JSON.name])
def test_a_forced_answer_is_a_call(name: str, reasoning: str | None, special: bool) -> None:
    tokenizer, formats = made(name, reasoning if name != "gpt-oss" else "gpt-oss", special=special)
    for seed in range(3):
        grammar = calls_answer(formats, "", TOOLS, several=seed > 0)
        found = answered(formats, drawn(grammar, tokenizer, formats, seed), "")
        assert found.content == ""
        assert len(found.calls) == 1 or seed > 0
        for call in found.calls:
            wanted = {"weather": ({"city": "Paris"}, {"city": "Rome"}), "now": ({},)}[call.name]
            assert json.loads(call.arguments) in wanted


REFERRING: dict[str, Any] = {  # two tools that mean different things by one name
    "tree": {
        "$id": "https://example.org/tree",
        "$defs": {"P/~1": SCHEMA | {"properties": {"yes": {"$ref": "#/$defs/Q"}}}, "Q": {"type": "boolean"}},
        "type": "object",
        "properties": {
            "a/b %~": {"$ref": "https://example.org/tree#/$defs/P~1~01"},
            "inner": {"$ref": "#"},
            "$ref": {"enum": [{"$ref": "#/nowhere"}]},
        },
        "required": ["a/b %~"],
        "additionalProperties": False,
    },
    "leaf": {
        "definitions": {"Q": {"enum": [1, 2]}},
        "type": "object",
        "properties": {"size": {"$ref": "#/definitions/Q"}},
        "required": ["size"],
        "additionalProperties": False,
    },
}


def fits_referring(name: str, found: Any) -> bool:
    if name == "leaf":
        return found in ({"size": 1}, {"size": 2})
    return (
        isinstance(found["a/b %~"]["yes"], bool)
        and found.get("$ref") in (None, {"$ref": "#/nowhere"})
        and ("inner" not in found or fits_referring(name, found["inner"]))
    )


@pytest.mark.parametrize("marked", [True, False])  # marks that are no tokens: Mistral's calls are a list
@pytest.mark.parametrize("name", [*(one.name for one in TOOL_FORMATS), PLAIN_JSON.name])
def test_references_count_from_the_tools_own_schema(name: str, marked: bool) -> None:
    tokenizer = marked_tokenizer(*[name] * marked)
    formats = Formats.of(tokenizer, name)
    grammars = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    grammars.check(formed_answer(formats, "", Grammar.json_schema(SCHEMA), REFERRING))
    called = set()
    for seed in range(6):
        text = drawn(calls_answer(formats, "", REFERRING, several=seed > 2), tokenizer, formats, seed)
        reader = formats.reader(REFERRING, "")
        for call in whole(reader.feed(text) + reader.close()).calls:
            assert fits_referring(call.name, json.loads(call.arguments))
            called.add(call.name)
    assert called == set(REFERRING)


def one_of(values: list[Any], reference: str, **named: str) -> dict[str, Any]:
    """A tool whose argument is one of these values, by a reference to a definition."""
    return {
        "$defs": {"P": {"enum": values, **named}},
        "type": "object",
        "properties": {"x": {"$ref": reference}},
        "required": ["x"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("name", [*(one.name for one in TOOL_FORMATS), PLAIN_JSON.name])
@pytest.mark.parametrize(("reference", "named"), [("#/$defs/P", {}), ("#p", {"$anchor": "p"})])
def test_what_two_tools_mean_by_one_name_is_each_tools_own(name: str, reference: str, named: dict[str, str]) -> None:
    tools = {"number": one_of([1, 2], reference, **named), "letter": one_of(["a", "b"], reference, **named)}
    tokenizer = marked_tokenizer()  # without marks, Mistral's calls are a list
    formats = Formats.of(tokenizer, name)
    called = set()
    for seed in range(6):
        text = drawn(calls_answer(formats, "", tools, several=False), tokenizer, formats, seed)
        reader = formats.reader(tools, "")
        (call,) = whole(reader.feed(text) + reader.close()).calls
        assert json.loads(call.arguments)["x"] in {"number": (1, 2), "letter": ("a", "b")}[call.name]
        called.add(call.name)
    assert called == set(tools)


def test_two_tools_with_different_schemas_of_one_address_are_refused() -> None:
    def tools(*values: Any) -> dict[str, Any]:
        address = "https://example.org/p"
        return {f"tool{number}": one_of([one], address, **{"$id": address}) for number, one in enumerate(values)}

    tokenizer = marked_tokenizer("hermes")
    formats = Formats.of(tokenizer, "hermes")
    grammars = Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    grammars.check(calls_answer(formats, "", tools(1, 1), several=False))
    with pytest.raises(Problem, match="'tool0' and 'tool2' have different schemas of one") as refused:
        calls_answer(formats, "", tools(1, 1, 2), several=False)
    assert (refused.value.status, refused.value.param) == (400, "tools")


@pytest.mark.parametrize("name", REASONING)
def test_json_may_follow_reasoning(name: str | None) -> None:
    tokenizer, formats = made(None, name)
    thoughts = set()
    for seed in range(4):
        found = answered(
            formats, drawn(formed_answer(formats, "", Grammar.json_schema(SCHEMA)), tokenizer, formats, seed), ""
        )
        assert json.loads(found.content) in ({"yes": True}, {"yes": False})
        thoughts.add(bool(found.reasoning))
    if name == "think":
        begun = drawn(formed_answer(formats, "<think>\n", Grammar.json_schema(SCHEMA)), tokenizer, formats, 7)
        assert json.loads(answered(formats, begun, "<think>\n").content)["yes"] in (True, False)


def test_json_or_a_call() -> None:
    tokenizer, formats = made("hermes", "think")
    kinds = set()
    for seed in range(8):
        text = drawn(formed_answer(formats, "", Grammar.json_schema(SCHEMA), TOOLS), tokenizer, formats, seed)
        found = answered(formats, text, "")
        assert found.calls or json.loads(found.content) in ({"yes": True}, {"yes": False})
        kinds.add(bool(found.calls))
    assert kinds == {True, False}


def test_marks_that_are_no_tokens_are_written_as_text() -> None:
    tokenizer = marked_tokenizer()
    formats = Formats.of(tokenizer, "hermes")
    text = drawn(calls_answer(formats, "", TOOLS, several=False), tokenizer, formats, 1)
    assert text.startswith("<tool_call>\n{")
    assert len(answered(formats, text, "").calls) == 1


def test_reasoning_tokens_are_counted() -> None:
    tokenizer, formats = made("hermes", "think")
    ids = tokenizer("<think>abc</think>de")["input_ids"]
    assert formats.reasoning_tokens(ids, "") == 5
    assert formats.reasoning_tokens(ids[1:], "<think>") == 4
    assert formats.reasoning_tokens(ids[1:3], "<think>\n") == 2
    assert formats.reasoning_tokens(ids[1:3], "") == 0
