"""Halves of surrogate pairs in a text: no tokenizer and no file takes them."""

from __future__ import annotations


def half_pair_at(text: str) -> int | None:
    """The first character of a text that is one; None: it has none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
