"""How long a text is, before it is tokenised: which are refused by that alone, and which are quick.

Tokenising one that is far too long would delay everybody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from brim.engine.requests.lengths import no_room
from brim.errors import InvalidRequest
from brim.serve.requests.dialogue import Dialogue

ROLLED_CHARACTERS = 256 * 1024  # of a conversation that loses what does not fit, however small the context is
ROLLED_TOKEN = 16  # characters of a token, for one that loses the rest: it is counted many times
START_TOKEN = 8  # characters of a token that a text is looked at for first
QUICK_WEIGHT = 64 * 1024  # some 20 ms of a template and a tokenizer
_PART = 32  # what a text, a list or an object costs besides its characters, as characters
SURELY = 1.5  # times the context: as many tokens at the start of a text cannot become fewer


def check_dialogue(tokenizer: Any, dialogue: Dialogue, longest: int, rolls: bool) -> None:
    """Refuse a conversation that has too many characters, before a template writes it."""
    characters = _characters(_written(dialogue))
    (_check_rolled if rolls else _check)(tokenizer, characters, longest, "messages")


def check_length(tokenizer: Any, text: str, longest: int, *, counted: bool = False) -> None:
    """Refuse a text of which even the longest tokens would be too many, or whose start alone has too many.

    `counted`: it is not to be answered, and may be longer than a context.
    """
    field = "prompt"
    _check(tokenizer, len(text), longest, field)
    start = text[: START_TOKEN * longest]
    if not counted and len(start) < len(text) and (tokens := len(tokenizer(start)["input_ids"])) > SURELY * longest:
        because = f": the first {len(start)} are {tokens} already"
        raise no_room(field, f"its {len(text)} characters", longest, because)


def check_rolled_length(tokenizer: Any, text: str, longest: int) -> None:
    """Refuse a conversation that is too long to be counted, exchange by exchange, to find what is kept of it."""
    _check_rolled(tokenizer, len(text), longest, "messages")


def _check(tokenizer: Any, characters: int, longest: int, field: str) -> None:
    most = token_characters(tokenizer) * longest
    if characters > most:
        because = f", which holds at most {most} characters"
        raise no_room(field, f"its {characters} characters", longest, because)


def _check_rolled(tokenizer: Any, characters: int, longest: int, field: str) -> None:
    most = max(ROLLED_CHARACTERS, min(ROLLED_TOKEN, token_characters(tokenizer)) * longest)
    if characters > most:
        raise InvalidRequest(
            f"{field}: {characters} characters are more than the {most} that a conversation may have here; leave out "
            "the oldest messages"
        )


def _characters(found: Any) -> int:
    """Of all texts in it."""
    characters, left = 0, [found]
    while left:
        one = left.pop()
        if isinstance(one, str):
            characters += len(one)
        elif isinstance(one, Mapping):
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)
    return characters


@cache
def token_characters(tokenizer: Any) -> int:
    """Of the longest token; a character is at least one of a token's."""
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else ("x",)
    return max(map(len, vocabulary))


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
            left.extend(_written(one))
    return weight


def _written(dialogue: Dialogue) -> list[Any]:
    """All that a template is given to write."""
    asked = dialogue.template
    return [dialogue.tools, asked.variables, asked.documents, *(message.entry for message in dialogue.messages)]
