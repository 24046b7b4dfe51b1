"""How long a prompt may be: the one check of it, and the one text of what is too long.

`check_prompt_length` counts tokens. What is certain to be too long before it is tokenised (characters, messages) is
refused in the same words (`no_room`).
"""

from __future__ import annotations

from brim.errors import PromptTooLong

_REMEDY = "shorten it"


def check_prompt_length(
    tokens: int, *, context: int, longest: int, field: str = "prompt", remedy: str = _REMEDY
) -> None:
    """Refuse a prompt that leaves no room for an answer.

    `context` is the model's or the engine's limit, `longest` what the KV pool holds of one request where that is less;
    `field` is what the client calls the prompt.
    """
    if tokens >= context:
        raise no_room(field, f"{tokens} tokens", context, remedy=remedy)
    if tokens >= longest:
        raise PromptTooLong(
            f"{field}: {tokens} tokens do not fit the KV pool, which holds {longest} of one request; "
            f"{remedy}, or build the engine with more kv_tokens"
        )


def no_room(field: str, what: str, context: int, because: str = "", remedy: str = _REMEDY) -> PromptTooLong:
    known = "the input is longer than the model's context length"  # litellm tells this error from others by these words
    return PromptTooLong(
        f"{field}: {what} leave no room in the context of {context} tokens{because}: {known}; {remedy}"
    )
