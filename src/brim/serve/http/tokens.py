"""`/tokenize`, `/detokenize`, `/tokenizer_info` (in the shapes of vLLM's) and Anthropic's `count_tokens`.

The work is done in the processes that make prompts, one question of this kind at a time, so that prompts that are to be
answered do not wait for it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from brim.serve.http.parsing import checked, parsed
from brim.serve.http.reading import read_body
from brim.serve.lifecycle import AnyServer, ServerLifecycle, served_model
from brim.serve.prepare.jobs import ChatJob
from brim.serve.requests.answer_warnings import warn_all
from brim.serve.requests.dialogue import Dialogue
from brim.serve.requests.messages import read_count_tokens
from brim.serve.requests.tokenize import DetokenizeBody, TokenizeRequest, read_tokenize
from brim.serve.settings import ServeSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request


class TokenEndpoints:
    def __init__(self, lifecycle: ServerLifecycle, settings: ServeSettings) -> None:
        self._lifecycle = lifecycle
        self._settings = settings

    async def tokenize(self, request: Request) -> Response:
        """A prompt, or the messages of a chat, as tokens."""
        running, asked = await self._read(request, read_tokenize)
        tokens = await self._tokens(asked, running, request)
        texts = await running.tokenising.token_texts(tokens) if asked.with_texts else None
        longest = running.engine.longest_request
        return JSONResponse(
            {"count": len(tokens), "max_model_len": longest, "tokens": list(tokens), "token_strs": texts}
        )

    async def count_tokens(self, request: Request) -> Response:
        """The messages of a chat, as Anthropic counts them."""
        self._lifecycle.admit()  # a model that embeds or scores has none
        running, dialogue = await self._read(request, read_count_tokens)
        return JSONResponse({"input_tokens": len(await self._of_chat(dialogue, running, request))})

    async def detokenize(self, request: Request) -> Response:
        running, asked = await self._read(request, DetokenizeBody.read_body)
        return JSONResponse({"prompt": await running.tokenising.decoded(asked.tokens)})

    async def tokenizer_info(self, request: Request) -> Response:
        return JSONResponse(await self._lifecycle.admit_any().tokenising.tokenizer_info())

    async def _read(self, request: Request, read: Callable[..., Any]) -> tuple[AnyServer, Any]:
        body = await read_body(request, self._settings.limits)
        found = await parsed(body)
        running = self._lifecycle.admit_any()
        return running, await checked(partial(read, found, served_model(self._settings, running)), len(body))

    async def _tokens(self, asked: TokenizeRequest, running: AnyServer, request: Request) -> tuple[int, ...]:
        longest = running.engine.longest_request
        if asked.text is not None:
            (tokens,) = await running.tokenising.texts(
                [asked.text], special=asked.special, longest=longest, only_counted=True
            )
            return tokens
        assert asked.dialogue is not None
        tokens = await self._of_chat(asked.dialogue, running, request)
        return await running.tokenising.with_special(tokens) if asked.special else tokens

    async def _of_chat(self, dialogue: Dialogue, running: AnyServer, request: Request) -> tuple[int, ...]:
        longest, salt = running.engine.longest_request, request.state.tenant.salt
        job = ChatJob(dialogue, self._settings.limits, longest, None, salt=salt)
        prompt = await running.tokenising.chat(job, only_counted=True)
        warn_all(prompt.warnings)
        return prompt.tokens
