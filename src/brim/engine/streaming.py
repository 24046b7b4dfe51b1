"""An engine that generates, in a thread of its own, for many concurrent streams.

    async with StreamingEngine(engine) as serving:
        async for update in serving.stream("Once upon a time", SamplingParams(max_tokens=64)):
            print(update.text, end="")

What the thread does is in `engine_thread.py`; a step that runs out of memory ends one request at most, and not the
engine (`brim.engine.rescue`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from brim.engine.engine import Engine
from brim.engine.engine_thread import EngineThread
from brim.engine.front.answers import Completion, Update
from brim.engine.front.validation import GenerationRequest
from brim.engine.media.prepare import Given, GivenMedia, Prompt
from brim.engine.requests.params import SamplingParams
from brim.guard.shares import EVERYBODY, ClientShare


class StreamingEngine(EngineThread[GenerationRequest, Update]):
    """Runs an engine in a thread, from `start` to `close`; once closed, it stays closed."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        images: Given = (),
        audios: Given = (),
        videos: Given = (),
        deadline_seconds: float | None = None,
        request_id: str | None = None,
        salt: bytes = b"",
        priority: int = 0,
        share: ClientShare = EVERYBODY,
    ) -> AsyncGenerator[Update, None]:
        """Updates of one request, put together here (`stream_request`)."""
        given = GenerationRequest(
            prompt,
            params or SamplingParams(),
            GivenMedia(images, audios, videos),
            deadline_seconds,
            request_id,
            salt=salt,
            priority=priority,
            share=share,
        )
        async with aclosing(self.stream_request(given)) as updates:
            async for update in updates:
                yield update

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None, **options: Any) -> list[Completion]:
        """All answers of one request."""
        found = [update.completion async for update in self.stream(prompt, params, **options) if update.completion]
        return sorted(found, key=lambda one: one.index)
