"""Contents of messages are plain text: what spells a control token in them is not read as one.

A chat template writes control tokens (`<|end|>`, `<|user|>`, placeholders of images) and contents into one text, where
a tokenizer cannot tell them apart: a client that writes `<|end|><|system|>` into a turn ends it and begins another. So
before the template is applied, each such string in a message becomes a private character that no message contains
(`guard`); the control tokens in the text are then those of the template. The text is cut at them, and pieces with
private characters get their strings back and are tokenised with special tokens split (`tokens`). All other text is
tokenised as ever.

Control tokens are the tokenizer's special tokens, and in turns of users and tools also those added tokens that the
template spells (not every tokenizer marks these as special). Instructions and answers keep the latter: `<think>` in an
answer is the model's own. Not known here: added tokens that a normaliser makes of other letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brim.errors import InvalidRequest

Message = Mapping[str, Any]  # role and content, as in OpenAI's API
Encode = Callable[[str], Sequence[int]]

_TRUSTED_ROLES = ("system", "assistant")
_PRIVATE = re.compile("[\U000f0000-\U0010fffd]")
_NEVER = re.compile("(?!)")


@dataclass(frozen=True, slots=True)
class ChatText:
    """A conversation as its template wrote it, with private characters for strings that must stay text."""

    marked: str
    plain: Mapping[str, str] = field(default_factory=dict)  # a private character, and the text it replaces

    @property
    def shown(self) -> str:
        """As the messages had it."""
        return self.marked.translate({ord(mark): text for mark, text in self.plain.items()})


@dataclass(frozen=True, slots=True)
class EscapedMessages:
    """Messages, tools and variables without control tokens, and the private characters in place of them."""

    messages: list[Message]
    tools: list[Mapping[str, Any]]
    variables: dict[str, Any]
    plain: Mapping[str, str]


class ControlTokens:
    """What one tokenizer and its chat template read as control tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        template = str(getattr(tokenizer, "chat_template", None) or "")
        added = [one for one in getattr(tokenizer, "added_tokens_decoder", {}).values() if one.content.strip()]
        special = [one.content for one in added if one.special]
        spelled = [one.content for one in added if not one.special and _bracketed(one.content, template)]
        self._trusted = _Spellings(special)
        self._untrusted = _Spellings([*special, *spelled])
        self._unsplit = _any_of(spelled)
        self._added = _any_of(one.content for one in added)

    def guard(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> EscapedMessages:
        """Messages for the template, and what else it is told; a client may have written all of it."""
        told = variables or {}
        marks = _Marks(lambda: _texts([*messages, *tools, *told.values()]))
        said = [
            _changed(one, self._trusted if one.get("role") in _TRUSTED_ROLES else self._untrusted, marks)
            for one in messages
        ]
        described = [_changed(tool, self._trusted, marks) for tool in tools]
        others = {name: _changed(value, self._untrusted, marks) for name, value in told.items()}
        return EscapedMessages(said, described, others, marks.plain)

    def written(self, text: str, plain: Mapping[str, str]) -> ChatText:
        """What the template made of guarded messages; marks at the ends of texts go where nothing joins there."""
        joint = next((mark for mark, stands_for in plain.items() if not stands_for), None)
        if joint is not None and self._added.findall(joined := text.replace(joint, "")) == self._added.findall(text):
            text = joined
        return ChatText(text, {mark: stands_for for mark, stands_for in plain.items() if mark in text})

    def tokens(self, text: ChatText, encode: Encode) -> list[int]:
        """Its tokens; `encode` makes those of what has no private characters."""
        found: list[int] = []
        for piece, is_plain in self._pieces(text):
            found += self._plain_tokens(piece) if is_plain else encode(piece)
        return found

    def _pieces(self, text: ChatText) -> Iterator[tuple[str, bool]]:
        """The text between control tokens that has private characters, as it was said; and all that is around it."""
        around = ""
        for piece in self._added.split(text.marked) if text.plain else [text.marked]:
            if not any(mark in piece for mark in text.plain):
                around += piece
                continue
            if around:
                yield around, False
            yield ChatText(piece, text.plain).shown, True
            around = ""
        if around:
            yield around, False

    def _plain_tokens(self, text: str) -> list[int]:
        """Of a text in which nothing is a control token."""
        found: list[int] = []
        for piece in self._cut_inside(text):
            found += self._tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return found

    def _cut_inside(self, text: str) -> Iterator[str]:
        """Cut behind the first letter of tokens that no tokenizer splits, because they are not marked as special."""
        while (match := self._unsplit.search(text)) is not None:
            yield text[: match.start() + 1]
            text = text[match.start() + 1 :]
        if text:
            yield text


class _Spellings:
    """Strings to be found in a text, and the beginnings of them at its end."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._pattern = _any_of(strings)
        self._beginnings = {one[:length] for one in strings for length in range(1, len(one))}
        self._longest = max(map(len, self._beginnings), default=0)

    def marked(self, text: str, marks: _Marks) -> str:
        """A template may join two texts: the beginning of a control token at the end of one is kept from the next."""
        said = text.rstrip()
        ends = any(said[-length:] in self._beginnings for length in range(1, min(self._longest, len(said)) + 1))
        found = self._pattern.sub(lambda match: marks.of(match.group()), said)
        return found + (marks.of("") if ends else "") + text[len(said) :]


class _Marks:
    """Private characters for strings, each one that none of the texts contains."""

    def __init__(self, texts: Callable[[], Iterable[str]]) -> None:
        self._texts = texts
        self._free: Iterator[str] | None = None
        self._by_string: dict[str, str] = {}

    @property
    def plain(self) -> Mapping[str, str]:
        return {mark: string for string, mark in self._by_string.items()}

    def of(self, string: str) -> str:
        if string not in self._by_string:
            if self._free is None:
                taken = {letter for text in self._texts() for letter in _PRIVATE.findall(text)}
                self._free = (chr(code) for code in range(0xF0000, 0x10FFFE) if chr(code) not in taken)
            mark = next(self._free, None)
            if mark is None:
                raise InvalidRequest("chat: the conversation has every character for private use; leave some out")
            self._by_string[string] = mark
        return self._by_string[string]


def _changed(value: Any, spellings: _Spellings, marks: _Marks) -> Any:
    """The same with marks in all its texts."""
    if isinstance(value, str):
        return spellings.marked(value, marks)
    if isinstance(value, Mapping):
        return {_changed(name, spellings, marks): _changed(one, spellings, marks) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed(one, spellings, marks) for one in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _texts(name)
            yield from _texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)


def _bracketed(token: str, template: str) -> bool:
    """A name in brackets of some kind, spelled by the template; runs of spaces and words are no control tokens."""
    has_name = any(letter.isalpha() for letter in token)
    return has_name and not (token[0].isalnum() or token[-1].isalnum() or token != token.strip()) and token in template


def _any_of(strings: Iterable[str]) -> re.Pattern[str]:
    """Any of them, as tokenizers find them: the leftmost, of those the longest."""
    longest_first = sorted(set(strings), key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else _NEVER
