"""How much work a text is, before it is done: by its characters and its parts, found without looking into either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.serve.requests.dialogue import Dialogue

QUICK_WEIGHT = 64 * 1024  # some 20 ms of a template and a tokenizer
_PART = 32  # what a text, a list or an object costs besides its characters, as characters


def is_quick(found: Any) -> bool:
    """Whether it is so little that others may wait for it."""
    return weight_of(found, QUICK_WEIGHT) <= QUICK_WEIGHT


def weight_of(found: Any, enough: int) -> int:
    """Of texts, lists, objects or a dialogue; counting stops where it is more than `enough`."""
    weight, left = 0, [found]
    while left and weight <= enough:
        one = left.pop()
        weight += _PART
        if isinstance(one, str):
            weight += len(one)
        elif isinstance(one, Mapping):
            weight += sum(map(len, one))
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)
        elif isinstance(one, Dialogue):
            left.append(one.tools)
            left.extend(message.entry for message in one.messages)
    return weight
