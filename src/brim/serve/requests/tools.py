"""The tools of a request: which there are, and whether one of them must be called.

In: the fields `tools`, `tool_choice` and `parallel_tool_calls`, in either of OpenAI's spellings: a function inside of a
tool, or (`FLAT_…`, for `/v1/responses`) the tool itself. Out: `RequestedTools`, with tools as templates take them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
class NamedFunction(t.JsonObject):
    name: str = t.required(t.TEXT)


ToolChoice = str | NamedFunction
_FUNCTION = t.record(ToolFunction, needs="a name: a tool is a function with one")
_NAMED = t.record(NamedFunction, needs="the name of one of the tools")
_MODE = t.choice(("auto", "none", "required"), code="invalid_type")  # another text names no function


def _tools(kind: type[t.JsonObject]) -> t.JsonType[tuple[ToolFunction, ...]]:
    return t.listed(t.tagged({"function": kind}), most=lambda model: MOST_TOOLS)


TOOLS, FLAT_TOOLS = _tools(t.wrapped("function", _FUNCTION, IGNORED=CACHE_HINTS)), _tools(ToolFunction)
TOOL_CHOICE = t.either(_MODE, t.tagged({"function": t.wrapped("function", _NAMED)}))
FLAT_TOOL_CHOICE = t.either(_MODE, t.tagged({"function": NamedFunction}))


@dataclass(frozen=True, slots=True)
class RequestedTools:
    tools: tuple[Mapping[str, Any], ...] = ()  # as templates take them
    forced: tuple[str, ...] = ()  # one of these must be called; none: the model decides
    several: bool = True  # calls in one answer

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """The schema of each tool's parameters, by its name."""
        functions = [tool["function"] for tool in self.tools]
        return {one["name"]: one.get("parameters") or {"type": "object"} for one in functions}

    @property
    def forced_parameters(self) -> dict[str, Mapping[str, Any]]:
        return {name: schema for name, schema in self.parameters.items() if name in self.forced}


def requested_tools(tools: Sequence[ToolFunction], chosen: ToolChoice, several: bool) -> RequestedTools:
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise invalid("tools", "two of them have the same name; give each its own")
    entries = () if chosen == "none" else tuple(tool.entry for tool in tools)
    return RequestedTools(entries, _forced(chosen, names), several)


def _forced(chosen: ToolChoice, names: list[str]) -> tuple[str, ...]:
    if chosen in ("auto", "none"):
        return ()
    if not names:
        raise invalid("tool_choice", "there are no tools to choose from; give some, or leave it out")
    if isinstance(chosen, str):
        return tuple(names)
    if chosen.name not in names:
        raise invalid("tool_choice", f"it names {chosen.name!r:.40}, which is not one of the tools")
    return (chosen.name,)
