"""Formats of answers: what they mean, however they are cut, and that nothing is lost where they mean nothing."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InvalidRequest
from brim.serve.parse.pieces import Answered, Parser, Piece, Said, Thought, ToolCall, whole
from brim.serve.parse.table import (
    PLAIN_JSON,
    REASONING_FORMATS,
    TOOL_FORMATS,
    AnswerReader,
    Clues,
    Formats,
    check_parsers,
)

ARGUMENTS = '{"city": "Paris", "days": [1, 2]}'
WEATHER = ToolCall("weather", ARGUMENTS)
TOOLS: dict[str, Any] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}
}
BY_NAME = {one.name: one for one in (*TOOL_FORMATS, PLAIN_JSON)}
THINK = {one.name: one for one in REASONING_FORMATS}
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'
LLAMA = f'{{"name": "weather", "parameters": {ARGUMENTS}}}'
XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n[1, 2]\n</parameter>\n</function>\n</tool_call>"
)
CODE = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>"
PLAIN = f"<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
HARMONY = f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ARGUMENTS}"

CASES = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", Answered(calls=(WEATHER,))),
    (
        "hermes",
        f"See.\n\n<tool_call>{CALL}</tool_call>\n<tool_call>\n{CALL}\n</tool_call>",
        Answered("See.", calls=(WEATHER,) * 2),
    ),
    ("hermes", f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "weather"}}</tool_call>', Answered(calls=(WEATHER,))),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>', Answered(calls=(ToolCall("now", "{}"),))),
    ("hermes", f'<tool_call>{{"name": "weather", "arguments": {json.dumps(ARGUMENTS)}}}', Answered(calls=(WEATHER,))),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "Pa',
        Answered(calls=(ToolCall("weather", '{"city": "Pa'),)),
    ),
    ("hermes", "<tool_call>nonsense</tool_call> and more", Answered("<tool_call>nonsense</tool_call> and more")),
    ("hermes", '<tool_call>{"nam', Answered('<tool_call>{"nam')),
    ("hermes", "2 < 3 <tool", Answered("2 < 3 <tool")),
    ("qwen3-xml", XML, Answered(calls=(WEATHER,))),
    ("qwen3-xml", f"So:\n{XML}\n{XML}", Answered("So:", calls=(WEATHER,) * 2)),
    ("qwen3-xml", "<tool_call><function=now></function></tool_call>", Answered(calls=(ToolCall("now", "{}"),))),
    ("qwen3-xml", "<tool_call>what", Answered("<tool_call>what")),
    ("llama3", LLAMA, Answered(calls=(WEATHER,))),
    ("llama3", f"<|python_tag|>{LLAMA}; {LLAMA}", Answered(calls=(WEATHER,) * 2)),
    ("llama3", '{"name": "Ada", "age": 3}', Answered('{"name": "Ada", "age": 3}')),
    ("llama3", '<|python_tag|>print("hi")', Answered('print("hi")')),
    ("llama3", "It is {warm}.", Answered("It is {warm}.")),
    ("json", LLAMA, Answered(calls=(WEATHER,))),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", Answered(calls=(WEATHER,) * 2)),
    (
        "mistral",
        f"Well. [TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]weather[CALL_ID]a1[ARGS]{ARGUMENTS}",
        Answered("Well.", calls=(WEATHER,) * 2),
    ),
    ("mistral", f"[TOOL_CALLS]weather{ARGUMENTS}", Answered(calls=(WEATHER,))),
    ("mistral", "[TOOL_CALLS]wea", Answered("[TOOL_CALLS]wea")),
    ("deepseek", f"<｜tool▁calls▁begin｜>{CODE}\n{CODE}<｜tool▁calls▁end｜>", Answered(calls=(WEATHER,) * 2)),
    ("deepseek", f"Sure.\n<｜tool▁calls▁begin｜>{PLAIN}<｜tool▁calls▁end｜>", Answered("Sure.", calls=(WEATHER,))),
    ("gpt-oss", HARMONY, Answered(calls=(WEATHER,))),
    (
        "gpt-oss",
        f"<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>",
        Answered(calls=(WEATHER,)),
    ),
]


def read(reader: Parser | AnswerReader, parts: list[str]) -> Answered:
    pieces: list[Piece] = [piece for part in parts for piece in reader.feed(part)]
    return whole(pieces + reader.close())


@pytest.mark.parametrize(("name", "text", "wanted"), CASES)
def test_calls_are_found_however_the_text_is_cut(name: str, text: str, wanted: Answered) -> None:
    for size in (len(text), 1, 2, 3, 7):
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        assert read(Parser(BY_NAME[name].parse, TOOLS), parts) == wanted


MARKS = sorted({mark for one in (*TOOL_FORMATS, *REASONING_FORMATS) for mark in one.marks})
FRAGMENTS = [*MARKS, "<think>", "</think>", CALL, LLAMA, XML, CODE, PLAIN, HARMONY, ARGUMENTS]
FRAGMENTS += ["<function=weather>", "<parameter=city>", "</parameter>", "</function>", "```json\n", " ", "\n"]
FRAGMENTS += ['{"name"', ": ", '"weather"', "{", "}", "[", "]", ",", ";", '"', "\\", "word", "é€", "<", "｜>", "null"]


@given(
    st.sampled_from(sorted(BY_NAME)),
    st.sampled_from([None, *sorted(THINK)]),
    st.booleans(),
    st.lists(st.sampled_from(FRAGMENTS), max_size=12),
    st.lists(st.integers(0, 200), max_size=20),
)
def test_no_text_means_something_else_when_it_is_cut(
    tools: str, reasoning: str | None, begun: bool, fragments: list[str], cuts: list[int]
) -> None:
    text = "".join(fragments)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    formats = Formats(BY_NAME[tools], None if reasoning is None else THINK[reasoning])
    tail = "<think>\n" if begun else ""
    parts = [text[start:end] for start, end in pairwise(places)]
    assert read(formats.reader(TOOLS, tail), parts) == read(formats.reader(TOOLS, tail), [text])


@given(st.sampled_from(sorted(BY_NAME)), st.text(alphabet="abc .,:'\n", max_size=60))
def test_a_text_without_calls_is_content(name: str, text: str) -> None:
    found = read(Parser(BY_NAME[name].parse, TOOLS), list(text))
    assert found == Answered(text if name not in ("llama3", "json") else text.lstrip(" \n"))


@given(
    st.sampled_from(sorted(BY_NAME)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    ),
)
def test_arguments_come_as_they_were_written(name: str, value: Any) -> None:
    arguments = json.dumps({"value": value}, ensure_ascii=False)
    frames = {
        "hermes": '<tool_call>{"name": "f", "arguments": %s}</tool_call>',
        "llama3": '{"name": "f", "parameters": %s}',
        "json": '{"name": "f", "arguments": %s}',
        "mistral": "[TOOL_CALLS]f[ARGS]%s",
        "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>%s<｜tool▁call▁end｜>",
        "gpt-oss": "<|channel|>commentary to=functions.f<|message|>%s<|call|>",
    }
    if name not in frames:
        return
    found = read(Parser(BY_NAME[name].parse, {"f": {}}), list(frames[name].replace("%s", arguments)))
    assert found.calls == (ToolCall("f", arguments),)


@pytest.mark.parametrize(
    ("name", "tail", "text", "wanted"),
    [
        ("think", "", "<think>\nHm.\n</think>\n\nYes.", Answered("Yes.", "Hm.")),
        ("think", "<|im_start|>assistant\n<think>\n", "Hm.\n</think>\n\nYes.", Answered("Yes.", "Hm.")),
        ("think", "<think>\n", "Still thinking", Answered("", "Still thinking")),
        ("think", "", "No <think>", Answered("No <think>")),
        ("mistral", "", "[THINK]Hm.[/THINK]Yes.", Answered("Yes.", "Hm.")),
        (
            "gpt-oss",
            "",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            Answered("Yes.", "Hm."),
        ),
        (
            "gpt-oss",
            "",
            f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{HARMONY}<|call|>",
            Answered("", "Hm.", (WEATHER,)),
        ),
    ],
)
def test_reasoning_is_told_from_content(name: str, tail: str, text: str, wanted: Answered) -> None:
    formats = Formats(BY_NAME["gpt-oss" if name == "gpt-oss" else "hermes"], THINK[name])
    for parts in ([text], list(text)):
        assert read(formats.reader(TOOLS, tail), parts) == wanted


def test_content_comes_at_once() -> None:
    reader = Formats(BY_NAME["hermes"], THINK["think"]).reader(TOOLS, "")
    assert reader.feed("<think>Hm") == [Thought("Hm")]
    assert reader.feed("</think>Yes, it") == [Said("Yes, it")]
    assert reader.feed(" is <") == [Said(" is")]
    assert reader.feed("b>") == [Said(" <b>")]


@pytest.mark.parametrize(
    ("tokens", "template", "tools", "reasoning"),
    [
        (["<|channel|>", "<|call|>"], "", "gpt-oss", "gpt-oss"),
        (["[TOOL_CALLS]", "[THINK]", "[/THINK]"], "", "mistral", "mistral"),
        (["<｜tool▁calls▁begin｜>", "<think>", "</think>"], "", "deepseek", "think"),
        (["<tool_call>", "<think>", "</think>"], "<tool_call>", "hermes", "think"),
        (["<tool_call>"], "<tool_call><function=a><parameter=b>", "qwen3-xml", None),
        (["<|python_tag|>"], "", "llama3", None),
        (["<|end|>"], "Tools: ", None, None),
    ],
)
def test_the_format_is_found_from_vocabulary_and_template(
    tokens: list[str], template: str, tools: str | None, reasoning: str | None
) -> None:
    clues = Clues(template, {token: number for number, token in enumerate(tokens)}, frozenset(range(9)))
    found = [[one.name for one in formats if one.known_by(clues)] for formats in (TOOL_FORMATS, REASONING_FORMATS)]
    assert [next(iter(names), None) for names in found] == [tools, reasoning]


@pytest.mark.parametrize(("end", "arguments"), [("", ""), ("}</tool_call>", "{}")])
def test_a_call_cut_off_before_its_arguments_has_none(end: str, arguments: str) -> None:
    """As in a stream: `{}` would be a call that needs no arguments."""
    parser = Parser(BY_NAME["hermes"].parse, {})
    pieces = parser.feed('<tool_call>{"name": "now"' + end) + parser.close()
    assert whole(pieces).calls == (ToolCall("now", arguments),)


def test_names_of_parsers_are_checked_without_a_model() -> None:
    check_parsers("hermes", "auto")
    check_parsers("json", "none")
    with pytest.raises(InvalidRequest, match="tool-parser 'hermse' is not known; did you mean hermes"):
        check_parsers("hermse", "auto")
    with pytest.raises(InvalidRequest, match="reasoning-parser 'hermes' is not known"):
        check_parsers("auto", "hermes")
