"""A conversation as the prompt that a model was trained on: its tokenizer's chat template, applied to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
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


_REASONING = ("reasoning_content", "reasoning", "thinking")  # what templates call the reasoning of a message


class ChatTemplate:
    """A tokenizer's template. Contents of messages stay plain text (`control_tokens`)."""

    def __init__(self, tokenizer: Any) -> None:
        if not has_chat_template(tokenizer):
            raise InvalidRequest("chat: the model's tokenizer has no chat template; use --raw, or leave out --chat")
        self.tokenizer = tokenizer
        self._controls = ControlTokens(tokenizer)

    @property
    def variables(self) -> frozenset[str]:
        """Names that the template reads, or sets where nobody gave them."""
        return self._names[0]

    @cached_property
    def _names(self) -> tuple[frozenset[str], frozenset[str]]:
        found = self.tokenizer.chat_template
        return _names(found if isinstance(found, str) else "\n".join(map(str, found.values())))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        answering: bool = True,
        *,
        continuing: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> ChatText:
        """The prompt up to where the assistant begins to answer, or (not `answering`) to the end of the last turn.

        `continuing`: to the end of the last message's text, which the answer goes on from. `variables` are what the
        template is told besides, by name.
        """
        guarded = self._controls.guard([self._with_reasoning(one) for one in messages], tools, variables)
        more: dict[str, Any] = {"tools": guarded.tools} if guarded.tools else {}
        more |= {"continue_final_message": True} if continuing else {"add_generation_prompt": answering}
        text = self._applied(guarded.messages, more | guarded.variables)
        return self._controls.written(text, guarded.plain)

    def _with_reasoning(self, message: Message) -> Message:
        """Its reasoning under the name that this template knows."""
        thought = message.get(_REASONING[0])
        if thought is None:
            return message
        own = next((name for name in _REASONING if name in self._names[1]), _REASONING[0])
        return {name: value for name, value in message.items() if name != _REASONING[0]} | {own: thought}

    def tokens(self, text: ChatText, encode: Encode | None = None) -> list[int]:
        """The template has written what a tokenizer otherwise puts around a text."""
        return self._controls.tokens(text, encode or self._encode)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _applied(self, messages: list[Message], more: Mapping[str, Any]) -> str:
        try:
            found = self.tokenizer.apply_chat_template(messages, tokenize=False, **more)
        except Exception as error:  # a template is a program of the model's authors, and may raise anything
            raise InvalidRequest(
                f"chat: the model's chat template refuses the conversation ({first_line(error)})"
            ) from error
        return str(found)


def _names(template: str) -> tuple[frozenset[str], frozenset[str]]:
    """(of variables, of what is inside of them). The lexer knows no tags, so any template can be read."""
    from jinja2 import Environment

    outer: set[str] = set()
    inner: set[str] = set()
    before = ""
    for _, kind, value in Environment(autoescape=True).lex(template):  # nothing is rendered
        if kind == "string":
            inner.add(value[1:-1])  # message['reasoning_content']
        elif kind == "name":
            (inner if before == "." else outer).add(value)
        if kind != "whitespace":
            before = value
    return frozenset(outer), frozenset(inner)


def chat_tokens(
    tokenizer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), answering: bool = True
) -> list[int]:
    """One conversation as tokens."""
    template = ChatTemplate(tokenizer)
    return template.tokens(template.render(messages, tools, answering))
