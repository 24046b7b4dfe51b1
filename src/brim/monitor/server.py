"""A server that is watched: which engine it is, by its `/metrics`, and how it is now.

In: an address. Out: `ServerReading`s; of a server of Brim, with what its `/v1/memory` says. Why there is none is a
`NoReading`, in one line that says what to do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from brim.errors import InvalidRequest
from brim.monitor.asking import LARGEST_ANSWER, ServerAnswer, ask
from brim.monitor.engines import ServerFigures, figures_from, printable
from brim.monitor.history import FiguresHistory, ServerRates

DEFAULT_URL = "http://127.0.0.1:8000"
_LONGEST_TEXT = 2000
_LEVELS = 12  # of a report
_OK, _NO_KEY, _NOT_FOUND = 200, 401, 404


class NoReading(Exception):
    """Why there is nothing to show, in one line; `answered`: somebody is there."""

    def __init__(self, said: str, *, answered: bool = True) -> None:
        super().__init__(said)
        self.answered = answered


@dataclass(frozen=True, slots=True)
class ServerReading:
    """A server at one moment."""

    url: str
    time: float
    figures: ServerFigures
    rates: ServerRates
    memory: dict[str, Any] | None = None  # what `/v1/memory` of a server of Brim says


def checked_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"url '{url[:60]}' is not an address; write it like {DEFAULT_URL}")
    try:
        port, host = urlsplit(url).port, urlsplit(url).hostname
    except ValueError as error:
        raise InvalidRequest(f"url '{url[:60]}' is not an address: {error}; write it like {DEFAULT_URL}") from None
    if not host or port == 0:
        raise InvalidRequest(f"url '{url[:60]}' names no server; write it like {DEFAULT_URL}")
    return url.rstrip("/")


class MonitoredServer:
    """Asked again and again; from one thread at a time."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        clock: Callable[[], float] = time.time,
        asked: Callable[[str, str | None], ServerAnswer] = ask,
    ) -> None:
        self.url = checked_url(url)
        self._key = key
        self._clock = clock
        self._ask = asked
        self._history = FiguresHistory()

    def look(self) -> ServerReading:
        figures = figures_from(self._metrics())
        if not figures.engine:
            raise NoReading(f"{self.url}/metrics has no metrics of Brim, vLLM, SGLang or TGI; is the address right?")
        memory = self._memory() if figures.engine == "brim" else None
        if memory is not None:
            figures = replace(figures, model=str(memory.get("model", "")))
        now = self._clock()
        return ServerReading(self.url, now, figures, self._history.add(now, figures), memory)

    def _metrics(self) -> str:
        answer = self._answer("/metrics")
        if answer.status == _NOT_FOUND:
            raise NoReading(f"{self.url} has no /metrics; SGLang has them with --enable-metrics")
        if answer.status != _OK:
            raise NoReading(self._refusal("/metrics", answer))
        return answer.body.decode("utf-8", "replace")

    def _memory(self) -> dict[str, Any] | None:
        """None where it has no such report, or one of another version."""
        answer = self._answer("/v1/memory")
        if answer.status == _NOT_FOUND:
            return None
        if answer.status != _OK:
            raise NoReading(self._refusal("/v1/memory", answer))
        found = _read_json(answer.body)
        is_report = isinstance(found, dict) and found.get("object") == "brim.memory" and "card" in found
        return shown_json(found) if is_report else None

    def _answer(self, path: str) -> ServerAnswer:
        try:
            return self._ask(f"{self.url}{path}", self._key)
        except OSError as error:
            reason = printable(str(getattr(error, "reason", None) or error))
            raise NoReading(
                f"no server answers at {self.url} ({reason}); start one with brim serve, or say where it is with --url",
                answered=False,
            ) from None

    def _refusal(self, path: str, answer: ServerAnswer) -> str:
        if answer.status == _NO_KEY:
            return f"{self.url}: the API key is missing or wrong; give --api-key KEY, or set BRIM_API_KEY"
        found = _read_json(answer.body)
        said = found.get("error") if isinstance(found, dict) else None
        message = said.get("message") if isinstance(said, dict) else None
        if isinstance(message, str):
            return f"{self.url}: {printable(message, _LONGEST_TEXT)}"
        return f"{self.url}{path} answered {answer.status}"


def _read_json(body: bytes) -> Any:
    try:
        return json.loads(body[:LARGEST_ANSWER])
    except (ValueError, RecursionError):
        return None


def shown_json(found: Any, levels: int = _LEVELS) -> Any:
    """A report as a terminal can show it: texts without control characters, and no deeper than a report is."""
    if isinstance(found, str):
        return printable(found, _LONGEST_TEXT)
    if isinstance(found, dict):
        return {printable(name): shown_json(one, levels - 1) for name, one in found.items()} if levels else {}
    if isinstance(found, list):
        return [shown_json(one, levels - 1) for one in found] if levels else []
    return found
