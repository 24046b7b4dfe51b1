"""A dialogue: turns of four roles, what the assistant was told in them, and the style it answers in.

In: what skills say. Out: turns, and their text as the chat template writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from models.tiny.phrasing import Filled, Phrases

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
END = "<|end|>"
PADDING = "<|pad|>"

# Written as `rendered` below writes it; the tools of a request become a line of the system prompt.
CHAT_TEMPLATE = (
    "{%- set named = namespace(tools='') -%}"
    "{%- for tool in tools or [] -%}"
    "{%- set named.tools = named.tools + (', ' if named.tools else '') + (tool.function or tool).name -%}"
    "{%- endfor -%}"
    "{%- set tool_line = 'Tools: ' + named.tools + '.' if named.tools else '' -%}"
    "{%- if tool_line and (not messages or messages[0].role != 'system') -%}"
    "{{- '<|system|>' + tool_line + '<|end|>' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- set content = (message.content or '') | trim -%}"
    "{%- if loop.first and message.role == 'system' and tool_line -%}"
    "{%- set content = (content + ' ' + tool_line) | trim -%}"
    "{%- endif -%}"
    "{{- '<|' + message.role + '|>' + content + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


@dataclass(frozen=True, slots=True)
class Turn:
    role: Role
    text: str

    @property
    def message(self) -> dict[str, str]:
        return {"role": self.role, "content": self.text}


def opening(role: Role) -> str:
    """The special token that a turn of this role begins with."""
    return f"<|{role}|>"


def rendered(turns: list[Turn] | tuple[Turn, ...]) -> str:
    return "".join(f"{opening(turn.role)}{turn.text}{END}" for turn in turns)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the user says and what the assistant should answer; a tool may be called, or have answered, in between."""

    user: str
    answer: str
    call: str | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Style:
    """How a system prompt wants every answer."""

    case: Literal["as written", "upper", "lower"] = "as written"
    first_word: str = ""
    last_word: str = ""

    def __call__(self, answer: str) -> str:
        said = " ".join(part for part in (self.first_word, answer, self.last_word) if part)
        return {"as written": said, "upper": said.upper(), "lower": said.lower()}[self.case]


@dataclass(frozen=True, slots=True)
class Fact:
    """A thing that can be told and asked about: clauses with a place for its value, and what is special to it."""

    key: str
    mine: str  # my name is {v}
    yours: str  # your name is {v}
    theirs: str  # the user's name is {v}
    unknown: str  # your name
    asks: Phrases | Filled
    values: Callable[[Random], str]
    tells: Phrases | None = None  # besides those that all facts share
    thanks: str | None = None  # the answer to being told, where it is a special one


@dataclass(slots=True)
class Memory:
    """What was said so far that later answers depend on."""

    told: dict[str, tuple[Fact, str]] = field(default_factory=dict)
    forgotten: list[Fact] = field(default_factory=list)
    own_name: str = "Brim"
    has_tools: bool = False
    last_answer: str = ""
    subject: Fact | None = None  # of the last exchange: what "it" is


Skill = Callable[[Random, Memory], Exchange | None]  # None: there is nothing to say it about yet
