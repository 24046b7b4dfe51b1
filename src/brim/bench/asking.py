"""One request to a server, from its first byte to what came of it."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from typing import Any

from brim.bench.records import Ask, Ending, RequestOutcome
from brim.client.client import Client, ConnectionFailed, Response
from brim.client.events import Events

_TOO_MANY = 429


class _Answer:
    """A streamed answer as it arrives: when its tokens came, and what the last events said."""

    def __init__(self, leaves_after: int | None) -> None:
        self.events = Events(self._take)
        self.first: float | None = None
        self.gaps = array("f")
        self.usage: dict[str, Any] = {}
        self.problem: Any = None
        self.has_left = False
        self._last = 0.0
        self._leaves_after = leaves_after
        self._task = asyncio.current_task()

    @property
    def tokens(self) -> int:
        return 0 if self.first is None else 1 + len(self.gaps)

    def _take(self, data: bytes) -> None:
        now = time.perf_counter()
        try:
            found = json.loads(data)
        except ValueError:
            self.problem = {"code": "bad_event", "message": f"an event is no JSON: {data[:60]!r}"}
            return
        choices = found.get("choices")
        if choices and _has_content(choices[0]):
            if self.first is None:
                self.first = now
            else:
                self.gaps.append(now - self._last)
            self._last = now
        elif "error" in found:
            self.problem = found["error"]
        if found.get("usage"):
            self.usage = found["usage"]
        if self._leaves_after is not None and self.tokens >= self._leaves_after:
            self._leave()

    def _leave(self) -> None:
        if not self.has_left and self._task is not None:
            self.has_left = True
            self._task.cancel()


def _has_content(choice: dict[str, Any]) -> bool:
    """Whether an event brings a token: text, reasoning, or a part of a tool call."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text"))
    return bool(delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))


async def ask_once(client: Client, path: str, body: dict[str, Any], ask: Ask, began: float) -> RequestOutcome:
    """Send it and read the answer to its end. Runs as a task of its own: a client that leaves cancels it."""
    answer, sent = _Answer(ask.leaves_after), time.perf_counter()
    try:
        response = await client.stream(path, body, answer.events.feed)
        ending, error, said = _judged(response, answer)
        retry_after = _seconds(response.headers.get("retry-after"))
    except ConnectionFailed as failure:
        ending, error, said, retry_after = Ending.FAILED, failure.kind, str(failure), 0.0
    except asyncio.CancelledError:
        if not answer.has_left:
            raise
        ending, error, said, retry_after = Ending.LEFT, None, None, 0.0
    details = answer.usage.get("prompt_tokens_details") or {}
    return RequestOutcome(
        ask=ask,
        ending=ending,
        sent=sent - began,
        ended=time.perf_counter() - began,
        first_token=None if answer.first is None else answer.first - began,
        gaps=answer.gaps,
        prompt_tokens=answer.usage.get("prompt_tokens", 0),
        answer_tokens=answer.usage.get("completion_tokens", answer.tokens),
        cached_tokens=details.get("cached_tokens") or 0,
        error=error,
        said=said,
        retry_after=retry_after,
    )


def _judged(response: Response, answer: _Answer) -> tuple[Ending, str | None, str | None]:
    """How it ended, the kind of error, and the server's words."""
    if response.status != 200:
        found = response.json()
        error = found.get("error") if isinstance(found, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        kind = f"{response.status} {code}" if code else str(response.status)
        return (Ending.REFUSED if response.status == _TOO_MANY else Ending.FAILED), kind, response.problem
    if answer.problem is not None:
        code = answer.problem.get("code") if isinstance(answer.problem, dict) else None
        return Ending.FAILED, f"in stream: {code or 'error'}", json.dumps(answer.problem)
    if not answer.events.ended:
        return Ending.FAILED, "cut_off", "the stream ended without [DONE]"
    return Ending.ANSWERED, None, None


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0
