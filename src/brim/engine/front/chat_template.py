"""A conversation as the prompt that a model was trained on: its tokenizer's chat template, applied to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brim.engine.requests.control_tokens import ChatText, ControlTokens, Encode, Message
from brim.errors import InvalidRequest, first_line


def has_chat_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def conversation(prompt: str, system: str | None = None, images: int = 0, audios: int = 0) -> list[Message]:
    """A single turn of the user, with an instruction before it and media in it."""
    media = [{"type": "image"}] * images + [{"type": "audio"}] * audios
    asked: Message = {"role": "user", "content": [*media, {"type": "text", "text": prompt}] if media else prompt}
    return [asked] if system is None else [{"role": "system", "content": system}, asked]


class ChatTemplate:
    """A tokenizer's template. Contents of messages stay plain text (`control_tokens`)."""

    def __init__(self, tokenizer: Any) -> None:
        if not has_chat_template(tokenizer):
            raise InvalidRequest("chat: the model's tokenizer has no chat template; use --raw, or leave out --chat")
        self.tokenizer = tokenizer
        self._controls = ControlTokens(tokenizer)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), answering: bool = True
    ) -> ChatText:
        """The prompt up to where the assistant begins to answer, or (not `answering`) to the end of the last turn."""
        guarded = self._controls.guard(messages, tools)
        text = self._applied(guarded.messages, guarded.tools, answering)
        return self._controls.written(text, guarded.plain)

    def tokens(self, text: ChatText, encode: Encode | None = None) -> list[int]:
        """The template has written what a tokenizer otherwise puts around a text."""
        return self._controls.tokens(text, encode or self._encode)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _applied(self, messages: list[Message], tools: list[Mapping[str, Any]], answering: bool) -> str:
        more: dict[str, Any] = {"tools": tools} if tools else {}
        try:
            found = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=answering, **more
            )
        except Exception as error:  # a template is a program of the model's authors, and may raise anything
            raise InvalidRequest(
                f"chat: the model's chat template refuses the conversation ({first_line(error)})"
            ) from error
        return str(found)


def chat_tokens(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), answering: bool = True
) -> list[int]:
    """One conversation as tokens."""
    template = ChatTemplate(tokenizer)
    return template.tokens(template.render(messages, tools, answering))
