"""What may be said in a conversation: what can be written down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from brim.errors import InvalidRequest, first_line
from brim.surrogates import half_pair_at


def check_text(field: str, text: object) -> None:
    """Refuse what is no text, or has halves of surrogate pairs, which no tokenizer and no file takes."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}: must be a string, not {type(text).__name__}")
    place = half_pair_at(text)
    if place is not None:
        raise InvalidRequest(f"{field}: its character {place} is half of a surrogate pair; give Unicode text")


def check_objects(field: str, objects: Iterable[Any]) -> None:
    """Refuse tools, or calls of them, that are no JSON objects."""
    for one in objects:
        if not isinstance(one, Mapping):
            raise InvalidRequest(f"{field}: one is a {type(one).__name__}; give JSON objects")
        try:
            json.dumps(one, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{field}: one cannot be written as JSON ({first_line(error)})") from None
