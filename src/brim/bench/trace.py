"""A recorded load: lines of JSON in, requests with their times out.

A line has `at` (seconds after the beginning), `prompt_tokens`, `completion_tokens`, and may have `images` and
`leaves_after` (tokens after which the client hangs up). The request log of `brim serve` is such a file as it is: its
`time` and `ms` say when a request began, and a status of 499 that its client hung up. Texts are not needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from brim.bench.records import Ask
from brim.errors import InvalidRequest

_LEFT = 499
_MOST_TOKENS = 1 << 27
_BEYOND = 16  # tokens: who hung up had asked for more, and it is not known how many


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests in the order of their times, from 0 on."""

    asks: tuple[Ask, ...]
    passed_over: int  # lines that are no requests, or requests that the server had refused

    @property
    def seconds(self) -> float:
        return self.asks[-1].at

    def faster(self, speed: float) -> RequestTrace:
        """The same requests in less time."""
        return replace(self, asks=tuple(replace(ask, at=ask.at / speed) for ask in self.asks))


def read_trace(path: Path) -> RequestTrace:
    """The trace in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidRequest(f"replay {path}: cannot be read ({said})") from None
    return parse_trace(text.splitlines(), str(path))


def parse_trace(lines: Iterable[str], name: str) -> RequestTrace:
    asks, passed_over = [], 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        ask = _ask(line, f"replay {name}, line {number}")
        if ask is None:
            passed_over += 1
        else:
            asks.append(ask)
    if not asks:
        raise InvalidRequest(f'replay {name}: there is no request in it; a line is like {{"at": 0.5, {_LENGTHS}}}')
    asks.sort(key=lambda ask: ask.at)
    return RequestTrace(tuple(replace(ask, at=ask.at - asks[0].at) for ask in asks), passed_over)


_LENGTHS = '"prompt_tokens": 300, "completion_tokens": 100'


def _ask(line: str, where: str) -> Ask | None:
    """The request of a line; None where it is none: a server's log has other lines too."""
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{where}: it is not JSON ({error})") from None
    if "at" not in found and ("time" not in found or not found.get("prompt_tokens")):
        return None
    answer, left = _count(found, "completion_tokens", where), found.get("leaves_after")
    if left is not None:
        left = _count(found, "leaves_after", where)
    elif found.get("status") == _LEFT:
        left = answer
    return Ask(
        prompt_tokens=max(1, _count(found, "prompt_tokens", where)),
        answer_tokens=max(1, answer) if left is None else max(answer, 2 * left + _BEYOND),
        at=_at(found, where),
        images=_count(found, "images", where) if "images" in found else 0,
        leaves_after=left,
    )


def _count(found: dict[str, Any], name: str, where: str) -> int:
    value = found.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_TOKENS:
        raise InvalidRequest(f"{where}: {name} is {value!r:.40}; it must be a number of tokens, like 300")
    return value


def _at(found: dict[str, Any], where: str) -> float:
    """When it began, in seconds."""
    name, value = ("at", found["at"]) if "at" in found else ("time", found["time"])
    try:
        seconds = float(value) if name == "at" else datetime.fromisoformat(value).timestamp() - found["ms"] / 1000
    except (KeyError, TypeError, ValueError):
        raise InvalidRequest(f"{where}: {name} is {value!r:.40}; it must be seconds, or a time with ms") from None
    if not abs(seconds) < 1e12:
        raise InvalidRequest(f"{where}: {name} is {value!r:.40}; it must be seconds")
    return seconds
