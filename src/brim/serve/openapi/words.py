"""Small schemas that others are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from brim.engine.requests.params import FLOAT_RANGES, FLOAT_RANGES_ABOVE, INT_RANGES

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
ANYTHING: Schema = {}
NOTHING: Schema = {"type": "null"}
OBJECT: Schema = {"type": "object"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}


def one_of(values: Iterable[Any]) -> Schema:
    return {"enum": list(values)}


def listed(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def optional(schema: Schema) -> Schema:
    """The same or null, which counts as absent."""
    return schema if not schema else either(schema, NOTHING)


def taken(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    """An object of a request: fields that are not needed may be null, and there are no others."""
    needed = list(required)
    shown = {name: schema if name in needed else optional(schema) for name, schema in properties.items()}
    return {"type": "object", "properties": shown, "required": needed, "additionalProperties": False}


def given(properties: Mapping[str, Schema], optionally: Mapping[str, Schema] | None = None) -> Schema:
    """An object of an answer: all of these fields are there, and perhaps others."""
    return {"type": "object", "properties": {**properties, **(optionally or {})}, "required": list(properties)}


def number_of(name: str) -> Schema:
    """A numeric sampling parameter, with the range that it is checked against."""
    if name in INT_RANGES:
        low, high = INT_RANGES[name]
        return {"type": "integer", "minimum": low, "maximum": high}
    if name in FLOAT_RANGES:
        least, most = FLOAT_RANGES[name]
        return {"type": "number", "minimum": least, "maximum": most}
    least, most = FLOAT_RANGES_ABOVE[name]
    return {"type": "number", "exclusiveMinimum": least, "maximum": most}


def decimals_below(limit: int) -> str:
    """A regular expression for the decimal numbers from 0 to `limit` - 1, leading zeros aside."""
    digits = str(limit - 1)
    shorter = [f"[1-9][0-9]{{{length - 1}}}" for length in range(1, len(digits))]
    longest = []
    for place, digit in enumerate(digits):
        low = int(place == 0)
        if int(digit) > low:
            rest = len(digits) - place - 1
            longest.append(f"{digits[:place]}[{low}-{int(digit) - 1}][0-9]{{{rest}}}")
    return f"^(0|{'|'.join([*shorter, *longest, digits])})$"
