"""Texts that are refused by their length alone: whoever sends one would keep everybody else's tokens waiting."""

from __future__ import annotations

from functools import cache
from typing import Any

from brim.errors import InvalidRequest

ROLLED_CHARACTERS = 256 * 1024  # of a conversation that loses what does not fit, however small the context is


def check_length(tokenizer: Any, text: str, longest: int, field: str = "prompt") -> None:
    """Refuse a text of which even the longest tokens would be too many."""
    most = _token_characters(tokenizer) * longest
    if len(text) > most:
        raise InvalidRequest(
            f"{field}: its {len(text)} characters leave no room in the context of {longest} tokens, which holds "
            f"at most {most} characters; shorten it"
        )


def check_rolled_length(tokenizer: Any, text: str, longest: int) -> None:
    """Refuse a conversation that is too long to be counted, exchange by exchange, to find what is kept of it."""
    most = max(ROLLED_CHARACTERS, _token_characters(tokenizer) * longest)
    if len(text) > most:
        raise InvalidRequest(
            f"messages: {len(text)} characters are more than the {most} that a conversation may have here; leave out "
            "the oldest messages"
        )


@cache
def _token_characters(tokenizer: Any) -> int:
    """Of the longest token; a character is at least one of a token's."""
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else ("x",)
    return max(map(len, vocabulary))
