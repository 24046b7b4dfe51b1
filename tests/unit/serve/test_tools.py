"""Which tools a request offers, which it forces, and what custom ones are to a model."""

from __future__ import annotations

from typing import Any

import pytest

from brim.engine.requests.grammar import Grammar
from brim.serve.problems import Problem
from brim.serve.requests.chat import read_chat
from brim.serve.requests.responses_api import read_response
from brim.serve.requests.tools import RequestedTools
from brim.serve.requests.types import ServedModel

MODEL = ServedModel("m", 300, longest=1000)
LARK = 'start: "a"+'
NAMES = ("add", "now", "run", "sum")
FUNCTIONS = [{"name": name} for name in NAMES[:2]]
CUSTOM = [
    ("run", None),
    ("sum", {"syntax": "lark", "definition": LARK}),
]


def chat(choice: Any) -> RequestedTools:
    tools = [{"type": "function", "function": one} for one in FUNCTIONS]
    for name, grammar in CUSTOM:
        form = {"type": "text"} if grammar is None else {"type": "grammar", "grammar": grammar}
        tools.append({"type": "custom", "custom": {"name": name, "format": form}})
    found: RequestedTools = read_chat(
        {"messages": [{"role": "user", "content": "a"}], "tools": tools, "tool_choice": choice}, MODEL
    ).tools
    return found


def flat(choice: Any) -> RequestedTools:
    tools: list[Any] = [{"type": "function", **one} for one in FUNCTIONS]
    for name, grammar in CUSTOM:
        form = {"type": "text"} if grammar is None else {"type": "grammar", **grammar}
        tools.append({"type": "custom", "name": name, "format": form})
    return read_response({"input": "a", "tools": tools, "tool_choice": choice}, MODEL, lambda name: None).chat.tools


def offered(tools: RequestedTools) -> list[str]:
    return [tool["function"]["name"] for tool in tools.tools]


def in_chat(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, kind: {"name": name}}


@pytest.mark.parametrize(("mode", "forced"), [("auto", ()), ("required", ("now", "run"))])
def test_only_tools_that_are_allowed_are_offered(mode: str, forced: tuple[str, ...]) -> None:
    some = [in_chat("function", "now"), in_chat("custom", "run")]
    nested = chat({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": some}})
    plain = [{"type": "function", "name": "now"}, {"type": "custom", "name": "run"}]
    for found in (nested, flat({"type": "allowed_tools", "mode": mode, "tools": plain})):
        assert (offered(found), found.forced, found.custom) == (["now", "run"], forced, {"run": None})


def test_a_custom_tool_is_a_function_with_a_text_to_the_model() -> None:
    found = chat("auto")
    assert flat("auto") == found
    assert offered(found) == list(NAMES)
    run, by_grammar = (tool["function"] for tool in found.tools[2:])
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert run == {"name": "run", "parameters": text | {"additionalProperties": False}}
    assert LARK in by_grammar["description"]
    assert found.custom == {"run": None, "sum": Grammar.lark(LARK)}
    assert found.whole is None


def test_an_answer_is_the_text_itself_where_it_must_follow_rules() -> None:
    for found in (chat(in_chat("custom", "sum")), flat({"type": "custom", "name": "sum"})):
        assert (found.forced, found.whole) == (("sum",), Grammar.lark(LARK))
    assert chat(in_chat("custom", "run")).whole is None
    assert chat("required").whole is None


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (in_chat("custom", "other"), "tool_choice"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": []}}, "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": [in_chat("function", "other")]}}, "tool_choice"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": []}}, "tool_choice.allowed_tools.mode"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(choice: Any, param: str) -> None:
    with pytest.raises(Problem) as refused:
        chat(choice)
    assert refused.value.param == param


def test_a_grammar_of_another_syntax_is_refused() -> None:
    tool = {"type": "custom", "name": "a", "format": {"type": "grammar", "syntax": "ebnf", "definition": "a"}}
    with pytest.raises(Problem) as refused:
        read_response({"input": "a", "tools": [tool]}, MODEL, lambda name: None)
    assert refused.value.param == "tools[0].format.syntax"


def test_calls_of_custom_tools_are_sent_back() -> None:
    call = {"id": "a", "type": "custom", "custom": {"name": "run", "input": "ls"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "b"},
    ]
    items = [
        {"role": "user", "content": "a"},
        {
            "type": "custom_tool_call",
            "call_id": "a",
            "name": "run",
            "input": "ls",
            "id": "ctc_1",
            "status": "completed",
        },
        {"type": "custom_tool_call_output", "call_id": "a", "output": "b"},
    ]
    written = {"type": "function", "function": {"name": "run", "arguments": {"input": "ls"}}, "id": "a"}
    for dialogue in (
        read_chat({"messages": messages}, MODEL).dialogue,
        read_response({"input": items}, MODEL, lambda name: None).chat.dialogue,
    ):
        assert dialogue.messages[1].entry == {"role": "assistant", "content": "", "tool_calls": [written]}
        assert dialogue.messages[2].entry == {"role": "tool", "content": "b", "tool_call_id": "a"}
