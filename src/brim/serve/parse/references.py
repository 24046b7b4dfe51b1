"""Schemas inside of a larger one: their references are pointed at where they stand now.

`#/$defs/P` counts from the root of its document. A tool's schema is a document of its own, and the grammar of a call
puts several of them into one: each becomes a definition of that one, and its references count from there. So two tools
may mean different things by `#/$defs/P`, and by an anchor, `#p`; by one `$id` inside of their schemas they may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from brim.serve.parse.pieces import Tools
from brim.serve.problems import invalid

_LITERAL = ("const", "default", "enum", "examples")  # values, not schemas
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # schemas by any name


def definitions(tools: Tools) -> dict[str, Any]:
    """The tools' schemas, as the definitions of a schema that `reference` refers to."""
    _check_addresses(tools)
    return {"$defs": {_name(number): _moved(schema, number) for number, schema in enumerate(tools.values())}}


def reference(number: int, *path: str) -> dict[str, str]:
    """The schema of the tool of this number, or what is at a path inside of it."""
    steps = [quote(step.replace("~", "~0").replace("/", "~1"), safe="~") for step in path]
    return {"$ref": "/".join([_pointed("", _name(number)), *steps])}


def refers(schema: Any) -> bool:
    """Whether a schema may refer to another part of its document."""
    if isinstance(schema, Mapping):
        return "$ref" in schema or any(refers(inner) for inner in schema.values())
    return isinstance(schema, list) and any(refers(inner) for inner in schema)


def _check_addresses(tools: Tools) -> None:
    """Refuse two schemas of one address."""
    seen: dict[str, tuple[str, Any]] = {}
    for name, schema in tools.items():
        for address, document in _addressed(list(schema.values())):
            other, first = seen.setdefault(address, (name, document))
            if document != first:
                both = f"'{other:.60}' and '{name:.60}'"
                raise invalid("tools", f"{both} have different schemas of one $id, {address!r:.60}; give each its own")


def _addressed(schema: Any) -> Iterator[tuple[str, Any]]:
    """Schemas inside of a schema that are documents of their own."""
    if isinstance(schema, Mapping) and isinstance(schema.get("$id"), str):
        yield schema["$id"], schema
    inner = schema.values() if isinstance(schema, Mapping) else schema if isinstance(schema, list) else ()
    for one in inner:
        yield from _addressed(one)


def _name(number: int) -> str:
    return f"tool{number}"


def _moved(schema: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A document as a definition; it has no address of its own any more."""
    own = schema.get("$id")
    address = own.removesuffix("#") if isinstance(own, str) else ""
    rest = {key: value for key, value in schema.items() if key != "$id"}
    found: dict[str, Any] = _rewritten(rest, address, _name(number))
    return found


def _rewritten(schema: Any, address: str, name: str) -> Any:
    if isinstance(schema, list):
        return [_rewritten(one, address, name) for one in schema]
    if not isinstance(schema, Mapping) or "$id" in schema:  # what has an address is a document of its own
        return schema
    return {key: _keyword(key, value, address, name) for key, value in schema.items()}


def _keyword(key: str, value: Any, address: str, name: str) -> Any:
    if key == "$ref" and isinstance(value, str):
        pointer = value.removeprefix(address)
        return _pointed(pointer[1:], name) if pointer.startswith("#") else value
    if key == "$anchor" and isinstance(value, str):
        return _anchor(value, name)
    if key in _NAMED and isinstance(value, Mapping):
        return {one: _rewritten(inner, address, name) for one, inner in value.items()}
    return value if key in _LITERAL else _rewritten(value, address, name)


def _pointed(place: str, name: str) -> str:
    """A path from the root of a document, or an anchor in it, where the document is a definition."""
    return f"#/$defs/{name}{place}" if not place or place.startswith("/") else f"#{_anchor(place, name)}"


def _anchor(anchor: str, name: str) -> str:
    return f"{name}-{anchor}"
