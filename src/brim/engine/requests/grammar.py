"""What an answer must follow: a JSON schema, a regular expression or a grammar, and one answer on its way through.

Records only: `brim.engine.front.grammars` compiles them. A `Constraint` is asked for the tokens that may come next
before each draw and told what was drawn, so the draw of a token waits until the one before it has been read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from brim.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np

MAX_GRAMMAR_LENGTH = 256 * 1024  # characters
MAX_EBNF_LENGTH = 32 * 1024  # of a grammar that Python converts, character by character
SPACES = r"[ \n\t]{0,16}"  # between the parts of JSON: without a bound, a model could write them for ever
_OPTIONS, _PATTERN = "x-guidance", "whitespace_pattern"


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    EBNF = "ebnf"  # GBNF of llama.cpp, as vLLM and SGLang take it too
    PARTS = "parts"  # a Lark grammar, and others that it refers to by name


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as it was written."""

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.kind, GrammarKind):
            raise InvalidRequest(f"grammar is of kind {self.kind!r}; it must be one of {', '.join(GrammarKind)}")
        if not isinstance(self.text, str) or not self.text:
            raise InvalidRequest("grammar is empty; write one, or leave it out")
        if len(self.text) > MAX_GRAMMAR_LENGTH:
            raise InvalidRequest(
                f"grammar is {len(self.text)} characters long; it may have at most {MAX_GRAMMAR_LENGTH}"
            )
        if self.kind is GrammarKind.EBNF and len(self.text) > MAX_EBNF_LENGTH:
            raise InvalidRequest(
                f"grammar is {len(self.text)} characters of EBNF; at most {MAX_EBNF_LENGTH} are converted: write Lark"
            )

    @staticmethod
    def json_schema(schema: Mapping[str, Any] | bool, whitespace: str | None = None) -> Grammar:
        """`whitespace` is a regular expression for what stands between the parts; None: a few spaces and line ends."""
        if whitespace is not None and not isinstance(schema, bool):
            schema = {**schema, _OPTIONS: {_PATTERN: whitespace}}
        return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))

    @staticmethod
    def regex(pattern: str) -> Grammar:
        return Grammar(GrammarKind.REGEX, pattern)

    @staticmethod
    def lark(rules: str) -> Grammar:
        return Grammar(GrammarKind.LARK, rules)

    @staticmethod
    def ebnf(rules: str) -> Grammar:
        return Grammar(GrammarKind.EBNF, rules)

    @staticmethod
    def parts(rules: str, others: Mapping[str, Grammar]) -> Grammar:
        """A Lark grammar that refers to others as `@name`."""
        named = [{"name": name, "kind": one.kind, "text": one.text} for name, one in others.items()]
        return Grammar(GrammarKind.PARTS, json.dumps({"lark": rules, "others": named}))


def json_options(schema: Any) -> dict[str, str]:
    """What llguidance is told of a schema besides itself: how many spaces there may be, unless the schema says so."""
    own = schema.get(_OPTIONS) if isinstance(schema, Mapping) else None
    pattern = own.get(_PATTERN) if isinstance(own, Mapping) else None
    return {_PATTERN: pattern if isinstance(pattern, str) else SPACES}


def written_schema(schema: Mapping[str, Any]) -> str:
    """A schema as Lark grammars have it inside."""
    return f"%json {json.dumps({**schema, _OPTIONS: json_options(schema)})}"


class Constraint(Protocol):
    """Which tokens one answer may go on with: on its way through a grammar, or by a list."""

    @property
    def fixed(self) -> bool:
        """`allowed` never changes: a draw need not wait until the token before it has been read."""
        ...

    @property
    def allowed(self) -> np.ndarray:
        """The tokens that may come next, as bits (uint8, the lowest bit first); those beyond its end may not."""
        ...

    def take(self, token: int) -> str | None:
        """This token was drawn and did not end the answer; returns why the answer cannot go on, if it cannot."""
        ...
