"""The tools of a request: which there are, and whether one of them must be called.

In: the fields `tools`, `tool_choice` and `parallel_tool_calls`, in either of OpenAI's spellings (a function inside of a
tool, or the tool itself). Out: `ToolsAsked`, with tools as templates take them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brim.serve.problems import invalid
from brim.serve.requests.fields import RequestFields, check_depth, entries

MOST_TOOLS = 128
MODES = ("auto", "none", "required")
NAME_LENGTH = 128


@dataclass(frozen=True, slots=True)
class RequestedTools:
    tools: tuple[Mapping[str, Any], ...] = ()  # as templates take them
    forced: tuple[str, ...] = ()  # one of these must be called; none: the model decides
    several: bool = True  # calls in one answer
    choice: Any = "auto"  # as it was written

    @property
    def parameters(self) -> dict[str, Mapping[str, Any]]:
        """The schema of each tool's parameters, by its name."""
        functions = [tool["function"] for tool in self.tools]
        return {one["name"]: one.get("parameters") or {"type": "object"} for one in functions}

    @property
    def forced_parameters(self) -> dict[str, Mapping[str, Any]]:
        return {name: schema for name, schema in self.parameters.items() if name in self.forced}


def read_tools(fields: RequestFields, *, flat: bool = False) -> RequestedTools:
    """`flat`: a tool has its name and parameters itself, as in `/v1/responses`."""
    found = fields.items("tools") or []
    if len(found) > MOST_TOOLS:
        raise invalid("tools", f"there are {len(found)}; at most {MOST_TOOLS} may be given")
    tools = tuple(_tool(tool, flat) for tool in entries(found, "tools"))
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise invalid("tools", "two of them have the same name; give each its own")
    several = fields.raw("parallel_tool_calls")
    if several is not None and not isinstance(several, bool):
        raise invalid("parallel_tool_calls", "it must be true or false", "invalid_type")
    choice = fields.raw("tool_choice")
    forced = _forced(fields, names, flat)
    return RequestedTools(
        () if choice == "none" else tools, forced, several is not False, "auto" if choice is None else choice
    )


def _tool(tool: RequestFields, flat: bool) -> Mapping[str, Any]:
    if tool.text("type") != "function":
        raise invalid(tool.path("type"), "only tools of type function are supported", "unsupported_value")
    function = tool if flat else tool.inner("function")
    name = function.text("name") if function is not None else None
    if function is None or not name or len(name) > NAME_LENGTH:
        raise invalid(tool.path("function"), "a tool is a function with a name", "missing_required_parameter")
    function.text("description")
    function.inner("parameters")
    parameters = function.raw("parameters") or {}
    check_depth(parameters, function.path("parameters"))
    _check_keywords(parameters, function.path("parameters"))
    function.flag("strict")
    function.refuse_others()
    tool.refuse_others()
    return {"type": "function", "function": function.given("name", "description", "parameters")}


def _check_keywords(schema: Mapping[str, Any], path: str) -> None:
    """The parts of a schema that calls are written and read by, where those of a model are no JSON."""
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise invalid(f"{path}.properties", "it must be an object; leave it out where there are none", "invalid_type")
    listed = {f"{path}.required": schema.get("required", [])}
    listed |= {f"{path}.properties.{name:.60}.enum": one["enum"] for name, one in properties.items() if _has_enum(one)}
    for where, found in listed.items():
        if not isinstance(found, list):
            raise invalid(where, "it must be a list", "invalid_type")


def _has_enum(schema: Any) -> bool:
    return isinstance(schema, dict) and "enum" in schema


def _forced(fields: RequestFields, names: list[str], flat: bool) -> tuple[str, ...]:
    choice = fields.raw("tool_choice")
    if choice is None or choice in ("auto", "none"):
        return ()
    if not names:
        raise invalid("tool_choice", "there are no tools to choose from; give some, or leave it out")
    if choice == "required":
        return tuple(names)
    if not isinstance(choice, dict):
        raise invalid("tool_choice", f"it must be one of {', '.join(MODES)}, or name a function", "invalid_type")
    inner = fields.inner("tool_choice")
    assert inner is not None
    if inner.text("type") != "function":
        raise invalid("tool_choice.type", "only function is supported", "unsupported_value")
    named = inner if flat else inner.inner("function")
    name = named.text("name") if named is not None else None
    if named is None or name not in names:
        raise invalid("tool_choice", f"it names {name!r:.40}, which is not one of the tools")
    named.refuse_others()
    inner.refuse_others()
    return (name,)
