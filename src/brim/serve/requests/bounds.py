"""How many messages a conversation may have, and parts and calls in them: counted before any is looked into.

Each of them takes at least one token of the prompt, so no more than those of one request can fit. Where the oldest are
dropped, more may be sent; but all that is sent has to be written by the template, so there is a limit in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from brim.serve.problems import Problem, invalid
from brim.serve.settings import RequestLimits

_LISTS = ("content", "tool_calls", "output")  # of a message, or of an item of `/v1/responses`


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a conversation, for a model and a server."""

    longest: int  # tokens of one request
    limits: RequestLimits
    rolls: bool = False  # what does not fit is dropped

    def check(self, messages: Sequence[Any], field: str) -> None:
        self._check(len(messages), "messages", field)
        self._check(sum(map(_parts, messages)), "parts and calls", field)

    def _check(self, count: int, what: str, field: str) -> None:
        if count > self.limits.messages:
            raise invalid(field, f"it has {count} {what}; at most {self.limits.messages} are taken: send fewer")
        if count > self.longest and not self.rolls:
            said = f"its {count} {what} leave no room in the context of {self.longest} tokens, of which each takes one"
            raise Problem(400, f"{field}: {said}; send fewer", param=field, code="context_length_exceeded")


def _parts(message: Any) -> int:
    lists: Iterable[Any] = (message.get(name) for name in _LISTS) if isinstance(message, dict) else ()
    return sum(len(some) for some in lists if isinstance(some, list))
