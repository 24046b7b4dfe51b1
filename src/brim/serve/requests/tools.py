"""The tools of a request: which there are, and whether one of them must be called.

In: the fields `tools`, `tool_choice` and `parallel_tool_calls`, in either of OpenAI's spellings: a function inside of a
tool, or (`FLAT_…`, for `/v1/responses`) the tool itself. Out: `RequestedTools`, with tools as templates take them:
custom ones, which take a text, as functions with one parameter (`brim.serve.parse.custom`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brim.engine.requests.grammar import MAX_GRAMMAR_LENGTH, Grammar, GrammarKind
from brim.serve.parse.custom import INPUT
from brim.serve.problems import invalid
from brim.serve.requests import types as t
from brim.serve.requests.media import CACHE_HINTS

MOST_TOOLS = 128
NAME_LENGTH = 128
_LIST: t.Schema = {"type": "array"}
_PARAMETERS: t.Schema = {  # any schema, as far as calls are written by it
    "type": "object",
    "properties": {
        "properties": {"type": "object", "additionalProperties": {"properties": {"enum": _LIST}}},
        "required": _LIST,
    },
}


def _parameters(schema: Mapping[str, Any], path: str, model: t.ServedModel) -> Mapping[str, Any]:
    """The parts of a schema that calls are written and read by, where those of a model are no JSON."""
    t.check_depth(schema, path)
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise invalid(f"{path}.properties", "it must be an object; leave it out where there are none", "invalid_type")
    lists = {f"{path}.required": schema.get("required", [])}
    lists |= {f"{path}.properties.{name:.60}.enum": one["enum"] for name, one in properties.items() if _has_enum(one)}
    for where, found in lists.items():
        if not isinstance(found, list):
            raise invalid(where, "it must be a list", "invalid_type")
    return schema


def _has_enum(schema: Any) -> bool:
    return isinstance(schema, dict) and "enum" in schema


@dataclass(frozen=True, slots=True)
class ToolGrammar(t.JsonObject):
    syntax: str = t.required(t.choice(("lark", "regex")))
    definition: str = t.required(t.text(most=MAX_GRAMMAR_LENGTH // 2))

    @property
    def value(self) -> Grammar:
        return Grammar(GrammarKind(self.syntax), self.definition)


_GRAMMAR = t.record(ToolGrammar)
PARAMETERS: t.JsonType[Mapping[str, Any]] = t.JsonType((dict,), _parameters, lambda model: _PARAMETERS)


@dataclass(frozen=True, slots=True)
class ToolFunction(t.JsonObject):
    name: str = t.required(t.text(most=NAME_LENGTH))
    description: str | None = t.optional(t.TEXT)
    parameters: Mapping[str, Any] | None = t.optional(PARAMETERS)
    strict: bool = t.optional(t.FLAG, default=False)
    IGNORED = CACHE_HINTS

    @property
    def entry(self) -> Mapping[str, Any]:
        """As templates take it."""
        found = {"name": self.name, "description": self.description, "parameters": self.parameters}
        given = {name: value for name, value in found.items() if value is not None}
        return {"type": "function", "function": given}


@dataclass(frozen=True, slots=True)
class CustomTool(t.JsonObject):
    """A tool whose input is a text, of any form or by a grammar."""

    name: str = t.required(t.text(most=NAME_LENGTH))
    description: str | None = t.optional(t.TEXT)
    format: Grammar | None = t.optional(t.tagged({"text": t.meaning(None), "grammar": t.wrapped("grammar", _GRAMMAR)}))
    IGNORED = CACHE_HINTS

    @property
    def entry(self) -> Mapping[str, Any]:
        """As templates take it: a function with one parameter."""
        said = [self.description or ""]
        if self.format is not None:
            said.append(f"The input follows this grammar ({self.format.kind}):\n{self.format.text}")
        text: dict[str, Any] = {"type": "string"}
        if self.format is not None and self.format.kind is GrammarKind.REGEX:
            text["pattern"] = f"^(?:{self.format.text})$"
        parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
        described = "\n".join(one for one in said if one)
        function = {"name": self.name, **({"description": described} if described else {}), "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class FlatCustomTool(CustomTool):
    format: Grammar | None = t.optional(t.tagged({"text": t.meaning(None), "grammar": ToolGrammar}))


@dataclass(frozen=True, slots=True)
class NamedFunction(t.JsonObject):
    name: str = t.required(t.TEXT)


@dataclass(frozen=True, slots=True)
class AllowedTools:
    """Those of the tools that may be called, or one of which must be."""

    names: tuple[str, ...]
    required: bool


Tool = ToolFunction | CustomTool
ToolChoice = str | NamedFunction | AllowedTools
_FUNCTION = t.record(ToolFunction, needs="a name: a tool is a function with one")
_CUSTOM = t.record(CustomTool, needs="a name")
_NAMED = t.record(NamedFunction, needs="the name of one of the tools")
_MODE = t.choice(("auto", "none", "required"), code="invalid_type")  # another text names no function
_ONE = t.tagged({"function": t.wrapped("function", _NAMED), "custom": t.wrapped("custom", _NAMED)})
_FLAT_ONE = t.tagged({"function": NamedFunction, "custom": NamedFunction})


def _allowed(one: t.JsonType[NamedFunction]) -> type[t.JsonObject]:
    @dataclass(frozen=True, slots=True)
    class AllowedChoice(t.JsonObject):
        tools: tuple[NamedFunction, ...] = t.required(t.listed(one, least=1, most=lambda model: MOST_TOOLS))
        mode: str = t.optional(t.choice(("auto", "required")), default="auto")

        @property
        def value(self) -> AllowedTools:
            return AllowedTools(tuple(tool.name for tool in self.tools), self.mode == "required")

    return AllowedChoice


def _tools(function: type[t.JsonObject], custom: type[t.JsonObject]) -> t.JsonType[tuple[Tool, ...]]:
    return t.listed(t.tagged({"function": function, "custom": custom}), most=lambda model: MOST_TOOLS)


TOOLS = _tools(t.wrapped("function", _FUNCTION, IGNORED=CACHE_HINTS), t.wrapped("custom", _CUSTOM, IGNORED=CACHE_HINTS))
FLAT_TOOLS = _tools(ToolFunction, FlatCustomTool)
TOOL_CHOICE = t.either(
    _MODE,
    t.tagged(
        {
            "function": t.wrapped("function", _NAMED),
            "custom": t.wrapped("custom", _NAMED),
            "allowed_tools": t.wrapped("allowed_tools", t.record(_allowed(_ONE))),
        }
    ),
)
FLAT_TOOL_CHOICE = t.either(
    _MODE, t.tagged({"function": NamedFunction, "custom": NamedFunction, "allowed_tools": _allowed(_FLAT_ONE)})
)


@dataclass(frozen=True, slots=True)
class RequestedTools:
    tools: tuple[Mapping[str, Any], ...] = ()  # as templates take them
    forced: tuple[str, ...] = ()  # one of these must be called; none: the model decides
    several: bool = True  # calls in one answer
    custom: Mapping[str, Grammar | None] = field(default_factory=dict)  # those that take a text, and its form

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """The schema of each tool's parameters, by its name."""
        functions = [tool["function"] for tool in self.tools]
        return {one["name"]: one.get("parameters") or {"type": "object"} for one in functions}

    @property
    def forced_parameters(self) -> dict[str, Mapping[str, Any]]:
        return {name: schema for name, schema in self.parameters.items() if name in self.forced}

    @property
    def whole(self) -> Grammar | None:
        """The form of an answer that is the text of a custom tool and nothing else: JSON could not follow it."""
        form = self.custom.get(self.forced[0]) if len(self.forced) == 1 else None
        return form if form is not None and form.kind is GrammarKind.LARK else None


def requested_tools(tools: Sequence[Tool], chosen: ToolChoice, several: bool) -> RequestedTools:
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise invalid("tools", "two of them have the same name; give each its own")
    offered = [] if chosen == "none" else [tool for tool in tools if _may_be_called(tool.name, chosen)]
    custom = {tool.name: tool.format for tool in offered if isinstance(tool, CustomTool)}
    return RequestedTools(tuple(tool.entry for tool in offered), _forced(chosen, names), several, custom)


def _may_be_called(name: str, chosen: ToolChoice) -> bool:
    return not isinstance(chosen, AllowedTools) or name in chosen.names


def _forced(chosen: ToolChoice, names: list[str]) -> tuple[str, ...]:
    if chosen in ("auto", "none"):
        return ()
    if not names:
        raise invalid("tool_choice", "there are no tools to choose from; give some, or leave it out")
    if isinstance(chosen, str):
        return tuple(names)
    wanted = chosen.names if isinstance(chosen, AllowedTools) else (chosen.name,)
    unknown = next((name for name in wanted if name not in names), None)
    if unknown is not None:
        raise invalid("tool_choice", f"it names {unknown!r:.40}, which is not one of the tools")
    return () if isinstance(chosen, AllowedTools) and not chosen.required else wanted
