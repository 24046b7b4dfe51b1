"""What an answer must follow: a JSON schema, a regular expression or a Lark grammar, and one answer on its way through.

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


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


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

    @staticmethod
    def json_schema(schema: Mapping[str, Any] | bool) -> Grammar:
        return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))

    @staticmethod
    def regex(pattern: str) -> Grammar:
        return Grammar(GrammarKind.REGEX, pattern)

    @staticmethod
    def lark(rules: str) -> Grammar:
        return Grammar(GrammarKind.LARK, rules)


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
