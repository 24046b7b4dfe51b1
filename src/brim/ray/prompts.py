"""A request as a router sees it: the digests of its blocks, and what it will hold.

In: a parsed body, whose it is, and what is known of the model's replicas. Out: a `RouteRequest`. Prompts are made into
tokens as the replicas make them, so the digests are theirs. Where that cannot be done here (images, or a tokenizer
whose files are on other machines), each message counts as one block: conversations still go where they were, as far as
this front end has sent them. A body that is wrong is routed too: its replica says what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from brim.engine.kv.digests import extend_digests
from brim.errors import BrimError
from brim.ray.replica_facts import ReplicaFacts
from brim.records.routing import RouteRequest, short_digest, short_digests
from brim.serve.http.keys import Tenant
from brim.serve.prepare.jobs import ChatJob
from brim.serve.prepare.worker import Tokenising
from brim.serve.problems import Problem
from brim.serve.requests.chat import ChatRequest, read_chat
from brim.serve.requests.completion import read_completion
from brim.serve.requests.messages import read_messages
from brim.serve.requests.responses_api import read_response
from brim.serve.requests.types import ServedModel
from brim.serve.settings import RequestLimits
from brim.units import ceil_div

_USUAL_ANSWER = 256  # tokens, where a longer one is allowed: most answers end before
_BYTES_PER_TOKEN = 4


class RoutedPrompts:
    """Makes the prompts of one model into requests for its router."""

    def __init__(self, facts: ReplicaFacts, limits: RequestLimits, patience_seconds: float) -> None:
        folder = facts.tokenizer.folder
        self._facts = facts
        self._limits = limits
        # what is unknown is refused by the replica, if it is
        self._model = ServedModel(vocab=facts.vocab, longest=facts.longest_request, lenient=True, limits=limits)
        self._patience = patience_seconds
        here = facts.tokenizer.bytes_only or (folder is not None and folder.is_dir())
        self._tokenising = Tokenising(facts.tokenizer) if here else None

    def close(self) -> None:
        if self._tokenising is not None:
            self._tokenising.close()

    async def route_request(self, path: str, body: Mapping[str, Any], size: int, tenant: Tenant) -> RouteRequest:
        try:
            if path == "/v1/completions":
                return await self._completion(body, tenant)
            return await self._chat(path, body, tenant)
        except (Problem, BrimError):
            return RouteRequest(tokens=size // _BYTES_PER_TOKEN, patience_seconds=self._patience)

    async def _chat(self, path: str, body: Mapping[str, Any], tenant: Tenant) -> RouteRequest:
        longest = self._facts.longest_request
        if path == "/v1/responses":
            asked: ChatRequest = read_response(body, self._model, lambda name: ()).chat
            messages = body.get("input")
        else:
            read = read_messages if path == "/v1/messages" else read_chat
            asked, messages = read(body, self._model), body.get("messages")
        salt = asked.wanted.salt(tenant.salt)
        if asked.dialogue.media or self._tokenising is None:
            return self._by_messages(messages, asked.wanted.params.n, asked.wanted.deadline_seconds, salt)
        job = ChatJob(asked.dialogue, self._limits, longest, asked.room if asked.rolls else None, salt=salt)
        tokens = (await self._tokenising.chat(job)).tokens
        params = asked.wanted.params
        return self._by_tokens(tokens, params.n, params.max_tokens, asked.wanted.deadline_seconds, salt)

    async def _completion(self, body: Mapping[str, Any], tenant: Tenant) -> RouteRequest:
        asked = read_completion(body, self._model)
        prompt, params = asked.prompts[0], asked.wanted.params
        deadline, salt = asked.wanted.deadline_seconds, asked.wanted.salt(tenant.salt)
        if isinstance(prompt, str):
            if self._tokenising is None:
                return self._by_messages([prompt], asked.answers, deadline, salt)
            (tokens,) = await self._tokenising.texts(
                [prompt], special=asked.add_special_tokens, longest=self._facts.longest_request
            )
        else:
            tokens = prompt
        if asked.kept is not None:
            tokens = tokens[asked.kept]
        return self._by_tokens(tokens, asked.answers, params.max_tokens, deadline, salt)

    def _by_tokens(
        self, tokens: Sequence[int], answers: int, most: int, deadline: float | None, salt: bytes
    ) -> RouteRequest:
        digests: list[bytes] = []
        extend_digests(digests, tokens, self._facts.block_size, salt)
        longest = len(tokens) + min(most, _USUAL_ANSWER)
        return RouteRequest(
            short_digests(digests),
            len(tokens),
            answers * ceil_div(longest, self._facts.block_size),
            answers,
            self._within(deadline),
        )

    def _by_messages(self, messages: Any, answers: int, deadline: float | None, salt: bytes) -> RouteRequest:
        found, seen = [], blake2b(salt, digest_size=16)
        for message in messages if isinstance(messages, list) else [messages]:
            seen.update(json.dumps(message, sort_keys=True).encode())
            found.append(short_digest(seen.digest()))
        size = self._facts.block_size
        blocks = len(found) + 1 + ceil_div(_USUAL_ANSWER, size)
        return RouteRequest(tuple(found), (len(found) + 1) * size, answers * blocks, answers, self._within(deadline))

    def _within(self, deadline: float | None) -> float:
        return self._patience if deadline is None else max(0.1, min(self._patience, deadline))
