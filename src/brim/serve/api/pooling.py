"""The way of a request that embeds or scores: read, let in, tokenised, computed in batches with others', and answered.

A request has a place in the queue for each few of its inputs: results are kept until all of them are there. Its inputs
take turns with everybody else's in the engine (`brim.engine.pooling.queue`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from brim.engine.pooling.requests import PoolingInput, PoolingRequest
from brim.model.tasks import ModelTask
from brim.serve.api.answering import LoggedEndpoint
from brim.serve.gate import RequestGate
from brim.serve.http.keys import Tenant, share_of
from brim.serve.http.parsing import checked, parsed
from brim.serve.http.reply import HttpReply
from brim.serve.lifecycle import PoolingServer, ServerLifecycle, served_model
from brim.serve.log import RequestLog, RequestLogEntry
from brim.serve.prepare.inputs import InputForm, too_long
from brim.serve.problems import SERVER, Problem, invalid
from brim.serve.requests.pooling import MOST_INPUT_TOKENS
from brim.serve.requests.types import ServedModel
from brim.serve.responses.pooling import check_finite
from brim.serve.settings import ServeSettings
from brim.units import ceil_div

if TYPE_CHECKING:
    from starlette.requests import Request

_INPUTS_OF_A_PLACE = 64
_PARTS = 8  # of the places: a request has no more than one
Texts = Sequence[Any]  # texts, pairs of texts (`Pair`), or token ids


@dataclass(frozen=True, slots=True)
class PoolingQuery:
    """A body that was read: what is computed, and how the answer is written from vectors and a count of tokens."""

    texts: Texts  # or token ids
    form: InputForm
    answer: Callable[[Sequence[np.ndarray], int], Iterator[bytes]]


class PoolingEndpoint(Protocol):
    """What is different between the endpoints that embed or score."""

    @property
    def tasks(self) -> tuple[ModelTask, ...]:
        """What a model must be for."""
        ...

    def read(self, found: Mapping[str, Any], model: ServedModel, running: PoolingServer) -> PoolingQuery:
        """The object in a body, checked."""
        ...


class Pooling(LoggedEndpoint):
    """One of these endpoints, as an ASGI application."""

    def __init__(
        self,
        path: str,
        endpoint: PoolingEndpoint,
        lifecycle: ServerLifecycle,
        settings: ServeSettings,
        request_log: RequestLog,
    ) -> None:
        super().__init__(path, lifecycle, settings, request_log)
        self._endpoint = endpoint

    async def _answer(
        self, request: Request, body: bytes, tenant: Tenant, reply: HttpReply, entry: RequestLogEntry
    ) -> None:
        self._lifecycle.admit_pooling(*self._endpoint.tasks)
        found = await parsed(body)
        running = self._lifecycle.admit_pooling(*self._endpoint.tasks)  # it may have begun to drain meanwhile
        model = served_model(self._settings, running)
        asked = await checked(partial(self._endpoint.read, found, model, running), len(body))
        share = share_of(tenant, entry.address)
        places = _places(len(asked.texts), running.gate)
        with running.gate.entered(places, share, asyncio.current_task()) as place:
            with entry.preparing():
                inputs = await _inputs(asked, running)
            given = PoolingRequest(inputs, entry.id, tenant.salt, share)
            entry.prompt_tokens = given.tokens
            _check_tokens(given.tokens, asked.form.field)
            vectors: dict[int, np.ndarray] = {}
            async with aclosing(running.serving.stream_request(given)) as results:
                async for one in results:
                    place.begun = True
                    if one.vector is None:
                        said = f"{asked.form.field}[{one.index}]: {one.error}"
                        raise Problem(500, said, kind=SERVER, code="request_failed")
                    vectors[one.index] = one.vector
            ordered = [vectors[index] for index in range(len(inputs))]
            check_finite(ordered)
            await reply.json_pieces(asked.answer(ordered, given.tokens))


def _places(inputs: int, gate: RequestGate) -> int:
    """As many as the inputs are worth, and a part of all at most: who has begun gives no place up for others."""
    most = gate.places // _PARTS if gate.most_per_share is None else min(gate.places // _PARTS, gate.most_per_share)
    return max(1, min(most, ceil_div(inputs, _INPUTS_OF_A_PLACE)))


async def _inputs(asked: PoolingQuery, running: PoolingServer) -> tuple[PoolingInput, ...]:
    """Tokens of the texts among them, made in a worker; those that are tokens already, cut or refused."""
    texts = [one for one in asked.texts if not _are_tokens(one)]
    made = iter(await running.tokenising.inputs(texts, asked.form) if texts else ())
    return tuple(
        _from_tokens(one, number, asked.form) if _are_tokens(one) else PoolingInput(*next(made))
        for number, one in enumerate(asked.texts)
    )


def _are_tokens(one: Any) -> bool:
    return not isinstance(one, str) and isinstance(one[0], int)


def _from_tokens(tokens: tuple[int, ...], number: int, form: InputForm) -> PoolingInput:
    kept = tokens if form.truncate is None else tokens[: form.truncate]
    if len(kept) > form.longest:
        raise too_long(f"{form.field}[{number}]", f"{len(kept):,} tokens", form.longest)
    return PoolingInput(np.asarray(kept, np.int32))


def _check_tokens(tokens: int, field: str) -> None:
    if tokens > MOST_INPUT_TOKENS:
        raise invalid(
            field, f"it has {tokens:,} tokens in all; at most {MOST_INPUT_TOKENS:,} are taken at once; send less"
        )
