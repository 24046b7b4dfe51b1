"""A conversation as the prompt that a model was trained on: its tokenizer's chat template, applied to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brim.errors import InvalidRequest, first_line

Message = Mapping[str, Any]  # role and content, as in OpenAI's API


def has_chat_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def conversation(prompt: str, system: str | None = None, images: int = 0, audios: int = 0) -> list[Message]:
    """A single turn of the user, with an instruction before it and media in it."""
    media = [{"type": "image"}] * images + [{"type": "audio"}] * audios
    asked: Message = {"role": "user", "content": [*media, {"type": "text", "text": prompt}] if media else prompt}
    return [asked] if system is None else [{"role": "system", "content": system}, asked]


def chat_text(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), answering: bool = True
) -> str:
    """The prompt up to where the assistant begins to answer, or (not `answering`) to the end of the last turn."""
    if not has_chat_template(tokenizer):
        raise InvalidRequest("chat: the model's tokenizer has no chat template; use --raw, or leave out --chat")
    try:
        more: dict[str, Any] = {"tools": list(tools)} if tools else {}
        return str(
            tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=answering, **more)
        )
    except Exception as error:  # a template is a program of the model's authors, and may raise anything
        raise InvalidRequest(
            f"chat: the model's chat template refuses the conversation ({first_line(error)})"
        ) from error


def chat_tokens(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), answering: bool = True
) -> list[int]:
    """The same as tokens; the template has written what a tokenizer otherwise puts around a text."""
    return list(tokenizer(chat_text(tokenizer, messages, tools, answering), add_special_tokens=False)["input_ids"])
