"""Schemas inside of a larger one: their references are pointed at where they stand now.

`#/$defs/P` counts from the root of its document. A tool's schema is a document of its own, and the grammar of a call
puts several of them into one: each becomes a definition of that one, and its references count from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from brim.serve.parse.pieces import Tools

_LITERAL = ("const", "default", "enum", "examples")  # values, not schemas
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # schemas by any name


def definitions(tools: Tools) -> dict[str, Any]:
    """The tools' schemas, as the definitions of a schema that `reference` refers to."""
    return {"$defs": {_name(number): _moved(schema, number) for number, schema in enumerate(tools.values())}}


def reference(number: int, *path: str) -> dict[str, str]:
    """The schema of the tool of this number, or what is at a path inside of it."""
    steps = [quote(step.replace("~", "~0").replace("/", "~1"), safe="~") for step in path]
    return {"$ref": "/".join([_root(number), *steps])}


def refers(schema: Any) -> bool:
    """Whether a schema may refer to another part of its document."""
    if isinstance(schema, Mapping):
        return "$ref" in schema or any(refers(inner) for inner in schema.values())
    return isinstance(schema, list) and any(refers(inner) for inner in schema)


def _name(number: int) -> str:
    return f"tool{number}"


def _root(number: int) -> str:
    return f"#/$defs/{_name(number)}"


def _moved(schema: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A document as a definition; it has no address of its own any more."""
    own = schema.get("$id")
    address = own.removesuffix("#") if isinstance(own, str) else ""
    rest = {key: value for key, value in schema.items() if key != "$id"}
    found: dict[str, Any] = _rewritten(rest, address, _root(number))
    return found


def _rewritten(schema: Any, address: str, root: str) -> Any:
    if isinstance(schema, list):
        return [_rewritten(one, address, root) for one in schema]
    if not isinstance(schema, Mapping) or "$id" in schema:  # what has an address is a document of its own
        return schema
    return {key: _keyword(key, value, address, root) for key, value in schema.items()}


def _keyword(key: str, value: Any, address: str, root: str) -> Any:
    if key == "$ref" and isinstance(value, str):
        pointer = value.removeprefix(address)
        return root + pointer[1:] if pointer == "#" or pointer.startswith("#/") else value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _rewritten(inner, address, root) for name, inner in value.items()}
    return value if key in _LITERAL else _rewritten(value, address, root)
