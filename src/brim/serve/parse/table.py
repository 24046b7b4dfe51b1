"""The formats that are known, and which of them a model writes: the one place where they are listed.

In: a tokenizer's vocabulary and chat template, and what the user has said. Out: `Formats`, from which each answer gets
its parsers. A rule looks at nothing but these clues, in the order of the table; no rule knows the name of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from brim.errors import InvalidRequest
from brim.serve.parse import deepseek, harmony, hermes, llama, mistral, qwen_xml
from brim.serve.parse.custom import CustomCalls
from brim.serve.parse.pieces import Parse, Parser, Piece, Said, Thought, Tools
from brim.serve.parse.think import thinking
from brim.suggest import did_you_mean, suggestions

AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True)
class Clues:
    """What a tokenizer tells about the format of answers."""

    template: str = ""
    tokens: Mapping[str, int] = field(default_factory=dict)  # those that were added to the vocabulary, special or not
    special: frozenset[int] = frozenset()  # ids that are left out of texts

    @staticmethod
    def of(tokenizer: Any) -> Clues:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        template = getattr(tokenizer, "chat_template", None) or ""
        return Clues(
            template if isinstance(template, str) else "\n".join(map(str, template.values())),
            {token.content: number for number, token in added.items()},
            frozenset(number for number, token in added.items() if token.special),
        )

    def know(self, *marks: str) -> bool:
        return all(mark in self.tokens for mark in marks)

    def write(self, *marks: str) -> bool:
        return all(mark in self.template for mark in marks)


@dataclass(frozen=True, slots=True)
class ToolFormat:
    name: str
    parse: Parse
    marks: tuple[str, ...]
    known_by: Callable[[Clues], bool]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    name: str
    start: str
    end: str
    known_by: Callable[[Clues], bool]
    marks: tuple[str, ...] = ()
    channels: Parse | None = None  # instead of two marks at the beginning

    @property
    def span(self) -> tuple[str, str]:
        """The tokens that reasoning lies between."""
        return (harmony.CHANNEL, harmony.END) if self.channels is not None else (self.start, self.end)

    def parse(self, begun: bool) -> Parse:
        return self.channels or thinking(self.start, self.end, begun)


TOOL_FORMATS = (
    ToolFormat("gpt-oss", harmony.parse_calls, harmony.MARKS, lambda clues: clues.know(harmony.CHANNEL, harmony.CALL)),
    ToolFormat(
        "mistral",
        mistral.parse,
        (mistral.OPEN, mistral.ARGUMENTS, mistral.CALL_ID),
        lambda clues: clues.know(mistral.OPEN),
    ),
    ToolFormat(
        "deepseek",
        deepseek.parse,
        (deepseek.CALLS, deepseek.CALLS_END, deepseek.CALL, deepseek.SEPARATOR, deepseek.CALL_END),
        lambda clues: clues.know(deepseek.CALLS),
    ),
    ToolFormat(
        "qwen3-xml",
        qwen_xml.parse,
        (hermes.OPEN, hermes.CLOSE),
        lambda clues: clues.write(qwen_xml.FUNCTION, qwen_xml.PARAMETER),
    ),
    ToolFormat(
        "hermes",
        hermes.parse,
        (hermes.OPEN, hermes.CLOSE),
        lambda clues: clues.write(hermes.OPEN) or clues.know(hermes.OPEN),
    ),
    ToolFormat("llama3", llama.parse, (llama.TAG,), lambda clues: clues.know(llama.TAG)),
)
PLAIN_JSON = ToolFormat(
    "json", llama.parse, (), lambda clues: False
)  # what a model that knows no calls is made to write

REASONING_FORMATS = (
    ReasoningFormat(
        "gpt-oss",
        "",
        "",
        lambda clues: clues.know(harmony.CHANNEL, harmony.CALL),
        harmony.MARKS,
        harmony.parse_reasoning,
    ),
    ReasoningFormat(
        "mistral", "[THINK]", "[/THINK]", lambda clues: clues.know("[THINK]", "[/THINK]"), ("[THINK]", "[/THINK]")
    ),
    ReasoningFormat(
        "think",
        "<think>",
        "</think>",
        lambda clues: clues.know("<think>", "</think>") or clues.write("</think>"),
        ("<think>", "</think>"),
    ),
)
TOOL_PARSERS = (AUTO, NONE, *(one.name for one in TOOL_FORMATS), PLAIN_JSON.name)
REASONING_PARSERS = (AUTO, NONE, *(one.name for one in REASONING_FORMATS))


@dataclass(frozen=True, slots=True)
class Formats:
    """How one model writes calls and reasoning; None: not at all, or nobody knows."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    clues: Clues = field(default_factory=Clues)

    @staticmethod
    def of(tokenizer: Any, tool_parser: str = AUTO, reasoning_parser: str = AUTO) -> Formats:
        clues = Clues.of(tokenizer)
        return Formats(
            _chosen("tool-parser", (*TOOL_FORMATS, PLAIN_JSON), tool_parser, clues),
            _chosen("reasoning-parser", REASONING_FORMATS, reasoning_parser, clues),
            clues,
        )

    def shown(self, with_tools: bool) -> tuple[int, ...]:
        """Special tokens that parsers must see in the text."""
        marks = [
            *(self.reasoning.marks if self.reasoning else ()),
            *(self.tools.marks if self.tools and with_tools else ()),
        ]
        ids = {self.clues.tokens[mark] for mark in marks if mark in self.clues.tokens}
        return tuple(sorted(ids & self.clues.special))

    def begun(self, tail: str) -> bool:
        """Whether a prompt with this end has begun the reasoning already."""
        start = "" if self.reasoning is None else self.reasoning.start
        return bool(start) and tail.rstrip().endswith(start)

    def reasoning_tokens(self, tokens: Sequence[int], tail: str) -> int:
        """How many tokens of an answer are reasoning, marks included; 0 where its marks are no tokens."""
        if self.reasoning is None:
            return 0
        start, end = (self.clues.tokens.get(mark) for mark in self.reasoning.span)
        last = max((place for place, token in enumerate(tokens) if token == end), default=None)
        if last is not None:
            return last + 1
        return len(tokens) if self.begun(tail) or (tokens and tokens[0] == start) else 0

    def forcing(self) -> Formats:
        """The same for an answer that must be a call: a model that knows none writes it as plain JSON."""
        return self if self.tools is not None else replace(self, tools=PLAIN_JSON)

    def reader(self, tools: Tools, tail: str, thoughts: bool = True, custom: CustomCalls | None = None) -> AnswerReader:
        """What reads one answer. No tools: calls are not looked for; no `thoughts`: reasoning is left out."""
        parsers = []
        if self.reasoning is not None:
            parsers.append(Parser(self.reasoning.parse(self.begun(tail)), tools))
        if self.tools is not None and tools:
            parsers.append(Parser(self.tools.parse, tools))
        return AnswerReader(parsers, thoughts, custom)


class AnswerReader:
    """Parsers, one behind the other: what is content to one is read by the next."""

    def __init__(self, parsers: list[Parser], thoughts: bool = True, custom: CustomCalls | None = None) -> None:
        self._parsers = parsers
        self._thoughts = thoughts
        self._custom = custom

    def feed(self, text: str) -> list[Piece]:
        return self._through(0, [Said(text)] if text else [])

    def close(self) -> list[Piece]:
        found: list[Piece] = []
        for number, parser in enumerate(self._parsers):
            found += self._through(number + 1, parser.close())
        return found if self._custom is None else found + self._custom.close()

    def _through(self, first: int, pieces: list[Piece]) -> list[Piece]:
        for parser in self._parsers[first:]:
            pieces = [made for one in pieces for made in (parser.feed(one.text) if isinstance(one, Said) else [one])]
        if self._custom is not None:
            pieces = self._custom.read(pieces)
        return pieces if self._thoughts else [one for one in pieces if not isinstance(one, Thought)]


def check_parsers(tool_parser: str, reasoning_parser: str) -> None:
    """Refuse names that nobody knows, before a model is loaded."""
    _check_name("tool-parser", (*TOOL_FORMATS, PLAIN_JSON), tool_parser)
    _check_name("reasoning-parser", REASONING_FORMATS, reasoning_parser)


def _check_name(option: str, formats: Iterable[Any], wanted: str) -> None:
    names = (AUTO, NONE, *(one.name for one in formats))
    if wanted not in names:
        meant = did_you_mean(suggestions(wanted, names))
        raise InvalidRequest(f"{option} '{wanted:.40}' is not known; {meant}choose one of {', '.join(names)}")


def _chosen(option: str, formats: Iterable[Any], wanted: str, clues: Clues) -> Any:
    _check_name(option, formats, wanted)
    if wanted == AUTO:
        return next((one for one in formats if one.known_by(clues)), None)
    return next((one for one in formats if one.name == wanted), None)
