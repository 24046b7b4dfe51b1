"""Texts that are refused by their length alone: tokenising one would delay everybody else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from brim.errors import InvalidRequest
from brim.serve.requests.dialogue import Dialogue

ROLLED_CHARACTERS = 256 * 1024  # of a conversation that loses what does not fit, however small the context is
ROLLED_TOKEN = 16  # characters of a token, for one that loses the rest: it is counted many times
START_TOKEN = 8  # characters of a token that a text is looked at for first
SURELY = 1.5  # times the context: as many tokens at the start of a text cannot become fewer


def check_dialogue(tokenizer: Any, dialogue: Dialogue, longest: int, rolls: bool) -> None:
    """Refuse a conversation that has too many characters, before a template writes it."""
    characters = _characters([dialogue.tools, [message.entry for message in dialogue.messages]])
    (_check_rolled if rolls else _check)(tokenizer, characters, longest, "messages")


def check_length(tokenizer: Any, text: str, longest: int, *, counted: bool = False) -> None:
    """Refuse a text of which even the longest tokens would be too many, or whose start alone has too many.

    `counted`: it is not to be answered, and may be longer than a context.
    """
    field = "prompt"
    _check(tokenizer, len(text), longest, field)
    start = text[: START_TOKEN * longest]
    if not counted and len(start) < len(text) and (tokens := len(tokenizer(start)["input_ids"])) > SURELY * longest:
        raise InvalidRequest(
            f"{field}: its {len(text)} characters leave no room in the context of {longest} tokens: the first "
            f"{len(start)} are {tokens} already; shorten it"
        )


def check_rolled_length(tokenizer: Any, text: str, longest: int) -> None:
    """Refuse a conversation that is too long to be counted, exchange by exchange, to find what is kept of it."""
    _check_rolled(tokenizer, len(text), longest, "messages")


def _check(tokenizer: Any, characters: int, longest: int, field: str) -> None:
    most = _token_characters(tokenizer) * longest
    if characters > most:
        raise InvalidRequest(
            f"{field}: its {characters} characters leave no room in the context of {longest} tokens, which holds "
            f"at most {most} characters; shorten it"
        )


def _check_rolled(tokenizer: Any, characters: int, longest: int, field: str) -> None:
    most = max(ROLLED_CHARACTERS, min(ROLLED_TOKEN, _token_characters(tokenizer)) * longest)
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
def _token_characters(tokenizer: Any) -> int:
    """Of the longest token; a character is at least one of a token's."""
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else ("x",)
    return max(map(len, vocabulary))
