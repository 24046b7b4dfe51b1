"""What may be said in a conversation: text that can be written down."""

from __future__ import annotations

from brim.errors import InvalidRequest


def check_text(field: str, text: object) -> None:
    """Refuse what is no text, or has halves of surrogate pairs, which no tokenizer and no file takes."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}: it must be a text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{field}: its character {error.start} is half of a surrogate pair; give Unicode text"
        ) from None
