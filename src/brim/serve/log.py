"""One line of JSON for each request, without a word of what was said; metrics are counted from the same entries."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from brim.engine.front.answers import Completion
from brim.serve.prepare.jobs import Prepared
from brim.serve.watch.latencies import TokenLatencies


@dataclass(slots=True)
class RequestLogEntry:
    """A request while it is answered."""

    path: str
    tenant: str
    address: str | None = None
    id: str = field(default_factory=lambda: f"req-{secrets.token_hex(8)}")
    began: float = field(default_factory=time.monotonic)
    status: int = 0
    error: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    evicted_tokens: int = 0
    images: int = 0
    audios: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    preemptions: int = 0
    prepare_seconds: float | None = None  # None: it was refused before
    first_token_seconds: float | None = None
    seconds: float = 0.0
    latencies: TokenLatencies | None = None  # of all requests
    _last_tokens: dict[int, float] = field(default_factory=dict)  # when each answer had its last
    in_background: bool = False  # it goes on when its client has been told that it is queued

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """While its prompt is made, waiting for a process to be free included."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.prepare_seconds = time.monotonic() - began

    def prepared(self, prompts: Sequence[Prepared]) -> None:
        self.prompt_tokens = sum(len(one.tokens) for one in prompts)
        self.evicted_tokens = sum(one.evicted_tokens for one in prompts)
        self.images = sum(one.images for one in prompts)
        self.audios = sum(one.audios for one in prompts)

    def took_token(self, answer: int = 0) -> None:
        """Counted one by one: an answer that is cut off has tokens too."""
        now = time.monotonic()
        if self.first_token_seconds is None:
            self.first_token_seconds = now - self.began
            if self.latencies is not None:
                self.latencies.first_token.observe(self.first_token_seconds)
        elif self.latencies is not None and answer in self._last_tokens:
            self.latencies.between_tokens.observe(now - self._last_tokens[answer])
        self._last_tokens[answer] = now
        self.completion_tokens += 1

    def ended(self, completion: Completion) -> None:
        self.cached_tokens += completion.reused_tokens if completion.index == 0 else 0
        self.preemptions += completion.preemptions
        self.finish_reasons.append(str(completion.finish_reason))

    def to_json(self) -> dict[str, Any]:
        return {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),  # when it ended
            "id": self.id,
            "path": self.path,
            "key": self.tenant,
            "address": self.address,
            "status": self.status,
            "error": self.error,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "evicted_tokens": self.evicted_tokens,
            "images": self.images,
            "audios": self.audios,
            "finish_reasons": self.finish_reasons,
            "preemptions": self.preemptions,
            "prepare_ms": _milliseconds(self.prepare_seconds),
            "first_token_ms": _milliseconds(self.first_token_seconds),
            "ms": _milliseconds(self.seconds),
        }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


class RequestLog:
    """Requests under way, and where their entries go when they are done."""

    def __init__(
        self,
        write: Callable[[str], object] | None,
        count: Callable[[RequestLogEntry], None],
        latencies: TokenLatencies | None = None,
    ) -> None:
        self._latencies = latencies
        self.under_way: dict[str, RequestLogEntry] = {}  # by id
        self._write = write
        self._count = count

    def entry(self, path: str, tenant: str, address: str | None = None) -> RequestLogEntry:
        entry = RequestLogEntry(path, tenant, address, latencies=self._latencies)
        self.under_way[entry.id] = entry
        return entry

    def write(self, entry: RequestLogEntry) -> None:
        self.under_way.pop(entry.id, None)
        entry.seconds = time.monotonic() - entry.began
        self._count(entry)
        if self._write is not None:
            self._write(json.dumps(entry.to_json()) + "\n")
