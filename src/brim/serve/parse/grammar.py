"""What an answer must look like where the request says so: of some form, or calls of tools, behind any reasoning.

In: a model's formats and what was asked. Out: a `Grammar`. Marks that are tokens of the vocabulary are written as those
tokens, others as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from brim.engine.requests.grammar import Grammar, GrammarKind, written_schema
from brim.serve.parse import deepseek, harmony, hermes, mistral, qwen_xml
from brim.serve.parse.pieces import Tools
from brim.serve.parse.references import definitions, reference, refers
from brim.serve.parse.table import PLAIN_JSON, Clues, Formats, ToolFormat

_LINE = "\n"
_TEXT = r"TEXT: /(.|\n)*/"
_SPACE = r"SPACE: /[ \n]{0,4}/"


def formed_answer(
    formats: Formats, tail: str, form: Grammar, tools: Tools | None = None, several: bool = True
) -> Grammar:
    """An answer of this form, or calls of tools where there are some and the model knows how."""
    callable_tools = tools if tools and formats.tools is not None else None
    if formats.reasoning is None and callable_tools is None:
        return form
    final = ""
    if formats.reasoning is not None and formats.reasoning.channels is not None:
        final = f'{_mark(formats.clues, harmony.CHANNEL)} "final" {_mark(formats.clues, harmony.MESSAGE)} '
    inside, others = _referred(form)
    rules = [f"content: {final}document", f"document: {inside}"]
    answer = "content"
    if callable_tools is not None and formats.tools is not None:
        rules += _calls(formats.tools, formats.clues, callable_tools, several)
        answer = "(content | answer)"
    written = _behind_reasoning(formats, tail, answer, rules)
    return Grammar.parts(written, others) if others else Grammar.lark(written)


def _referred(form: Grammar) -> tuple[str, dict[str, Grammar]]:
    """How a rule says that something of this form comes next, and the grammars that it refers to for that."""
    match form.kind:
        case GrammarKind.JSON_SCHEMA:
            return written_schema(json.loads(form.text)), {}
        case GrammarKind.PARTS:
            found = json.loads(form.text)
            others = {one["name"]: Grammar(GrammarKind(one["kind"]), one["text"]) for one in found["others"]}
            return "@form", {"form": Grammar.lark(found["lark"]), **others}
        case _:
            return "@form", {"form": form}


def calls_answer(formats: Formats, tail: str, tools: Tools, several: bool) -> Grammar:
    """An answer that is a call of one of these tools, or several."""
    kind = formats.tools or PLAIN_JSON
    return Grammar.lark(_behind_reasoning(formats, tail, "answer", _calls(kind, formats.clues, tools, several)))


def _behind_reasoning(formats: Formats, tail: str, answer: str, rules: list[str]) -> str:
    reasoning, clues = formats.reasoning, formats.clues
    if reasoning is None:
        return "\n".join([f"start: {answer}", *rules])
    if reasoning.channels is not None:
        head = f'{_mark(clues, harmony.CHANNEL)} "analysis" {_mark(clues, harmony.MESSAGE)} TEXT'
        before = f'({head} {_mark(clues, harmony.END)} {_mark(clues, harmony.START)} "assistant")?'
    else:
        thought = f"TEXT {_mark(clues, reasoning.end)} SPACE"
        before = thought if formats.begun(tail) else f"({_mark(clues, reasoning.start)} {thought})?"
    return "\n".join([f"start: {before} {answer}", _TEXT, _SPACE, *rules])


def _calls(kind: ToolFormat, clues: Clues, tools: Tools, several: bool) -> list[str]:
    """Rules for `answer`, in the form of the model's own calls."""

    def mark(text: str) -> str:
        return _mark(clues, text)

    more = " (SEPARATOR call)*" if several else ""
    lines = [r'SEPARATOR: "\n"']
    match kind.name:
        case "hermes":
            call = f'{mark(hermes.OPEN)} "\\n" body "\\n" {mark(hermes.CLOSE)}'
            return [
                f"answer: call{more}",
                f"call: {call}",
                f"body: {written_schema(_any_call(tools, 'arguments'))}",
                *lines,
            ]
        case "mistral" if clues.know(mistral.ARGUMENTS):
            one = [f"{mark(mistral.OPEN)} {_quoted(name)} {mark(mistral.ARGUMENTS)}" for name in tools]
            return [f"answer: call{'+' if several else ''}", *_each(one, tools)]
        case "mistral":
            most = {} if several else {"maxItems": 1}
            listed = {"type": "array", "items": _objects(tools, "arguments"), "minItems": 1, **most}
            return [f"answer: {mark(mistral.OPEN)} body", f"body: {written_schema({**listed, **definitions(tools)})}"]
        case "deepseek":
            return _deepseek(clues, tools, several)
        case "qwen3-xml":
            return _elements(clues, tools, more, lines)
        case "gpt-oss":
            to = f'{mark(harmony.CHANNEL)} "commentary to=functions."'
            as_json = f'{mark(harmony.CONSTRAIN)} "json" {mark(harmony.MESSAGE)}'
            one = [f"{to} {_quoted(name + ' ')} {as_json}" for name in tools]
            return ["answer: call", *_each(one, tools)]
        case _:
            return ["answer: body", f"body: {written_schema(_any_call(tools, 'parameters'))}"]


def _deepseek(clues: Clues, tools: Tools, several: bool) -> list[str]:
    in_code = clues.write(deepseek.CODE)
    heads = []
    separator = _mark(clues, deepseek.SEPARATOR)
    for name in tools:
        block = f"{_quoted(deepseek.IN_CODE)} {separator} {_quoted(f'{name}{_LINE}{deepseek.CODE}{_LINE}')}"
        heads.append(f"{_mark(clues, deepseek.CALL)} {block if in_code else f'{_quoted(name)} {separator}'}")
    after = f"{_quoted(_LINE + deepseek.CODE_END) if in_code else ''} {_mark(clues, deepseek.CALL_END)}"
    more = ' ("\\n" call)*' if several else ""
    answer = f"answer: {_mark(clues, deepseek.CALLS)} call{more} {_mark(clues, deepseek.CALLS_END)}"
    return [answer, *_each(heads, tools, after)]


def _elements(clues: Clues, tools: Tools, more: str, lines: list[str]) -> list[str]:
    """Calls as elements: those of their parameters that are needed must be there."""
    functions: list[str] = []
    values: list[str] = []
    for name, schema in tools.items():
        needed = schema.get("required", ())
        parts = []
        for key, value in schema.get("properties", {}).items():
            alone = {**reference(0, "properties", key), **definitions({name: schema})} if refers(value) else value
            values.append(f"value{len(values)}: {_value(alone)}")
            head, end = _quoted(f"{qwen_xml.PARAMETER}{key}>\n"), _quoted(f"\n{qwen_xml.PARAMETER_END}\n")
            part = f"{head} value{len(values) - 1} {end}"
            parts.append(part if key in needed else f"({part})?")
        begin, end = _quoted(f"{qwen_xml.FUNCTION}{name}>\n"), _quoted(f"{qwen_xml.FUNCTION_END}\n")
        functions.append(" ".join([begin, *parts, end]))
    call = f'call: {_mark(clues, hermes.OPEN)} "\\n" function {_mark(clues, hermes.CLOSE)}'
    return [f"answer: call{more}", call, f"function: {' | '.join(functions)}", *values, r"VALUE: /([^<]|\n)*/", *lines]


def _value(schema: Any) -> str:
    """A value inside of an element: a text is written without quotes, all else as JSON."""
    if not isinstance(schema, Mapping) or (schema.get("type") == "string" and "enum" not in schema):
        return "VALUE"
    listed = schema.get("enum", ())
    if listed and all(isinstance(one, str) for one in listed):
        return " | ".join(_quoted(one) for one in listed)
    return written_schema(schema)


def _each(heads: list[str], tools: Tools, after: str = "") -> list[str]:
    """A rule for a call of each tool: its head, its arguments, and what follows."""
    rules = [f"call{number}: {head} body{number} {after}" for number, head in enumerate(heads)]
    bodies = [f"body{number}: {written_schema(schema)}" for number, schema in enumerate(tools.values())]
    return [f"call: {' | '.join(f'call{number}' for number in range(len(heads)))}", *rules, *bodies]


def _any_call(tools: Tools, arguments: str) -> dict[str, Any]:
    """A call of any of the tools, as a whole schema."""
    return {**_objects(tools, arguments), **definitions(tools)}


def _objects(tools: Tools, arguments: str) -> dict[str, Any]:
    """A call of any of the tools, as an object, beside their definitions."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": name}, arguments: reference(number)},
                "required": ["name", arguments],
                "additionalProperties": False,
            }
            for number, name in enumerate(tools)
        ]
    }


def _mark(clues: Clues, mark: str) -> str:
    """A mark as a token of the vocabulary, or as the text that it is."""
    token = clues.tokens.get(mark)
    return _quoted(mark) if token is None else f"<[{token}]>"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
