"""The application: all endpoints, behind their keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from brim.errors import BrimError
from brim.serve.api.answering import CLIENT_LEFT, Answering, Endpoint
from brim.serve.api.chat import ChatEndpoint
from brim.serve.api.completions import CompletionsEndpoint
from brim.serve.api.responses import ResponsesEndpoint
from brim.serve.http.keys import OPEN_TO_ALL, KeyCheckedApp, Keys, Tenant, share_of
from brim.serve.http.page import page_routes
from brim.serve.http.parsing import checked, parsed
from brim.serve.http.reading import ClientGone, read_body
from brim.serve.lifecycle import ServerLifecycle, served_model
from brim.serve.log import RequestLog, RequestLogEntry
from brim.serve.memory import Asking, memory_report
from brim.serve.metrics import Metrics
from brim.serve.openapi.document import document
from brim.serve.plans import Planning
from brim.serve.prepare.jobs import ChatJob
from brim.serve.problems import SERVER, Problem, invalid, problem_of
from brim.serve.requests.chat import TokenizedPrompt, read_tokenize
from brim.serve.requests.plan import PlanQuery
from brim.serve.requests.types import ServedModel
from brim.serve.settings import ServeSettings
from brim.serve.stored import StoredResponses

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

_DIGITS = 18  # of a number in a query


def make_app(
    lifecycle: ServerLifecycle,
    settings: ServeSettings,
    write_log: Callable[[str], object] | None = None,
    planning: Planning | None = None,
) -> ASGIApp:
    """All of it. `write_log` takes a line for each request; None: there is no log."""
    metrics = Metrics(lifecycle, names_clients=bool(settings.api_keys))

    def count(entry: RequestLogEntry) -> None:
        metrics.count(entry)
        lifecycle.watch.ended(evicted_tokens=entry.evicted_tokens, status=entry.status)

    request_log = RequestLog(write_log, count)
    about = _About(lifecycle, settings, metrics, request_log)
    plans = _Plans(settings, planning or Planning())
    page = page_routes()

    def generating(path: str, endpoint: Endpoint) -> Route:
        return Route(path, Answering(path, endpoint, lifecycle, settings, request_log), methods=["POST"])

    app = Starlette(
        routes=[
            Route("/health", about.health),
            Route("/metrics", about.metrics),
            Route("/openapi.json", about.openapi),
            Route("/v1/models", about.models),
            Route("/v1/models/{name:path}", about.model),
            Route("/v1/memory", about.memory),
            Route("/v1/catalogue", plans.catalogue),
            Route("/v1/plan", plans.plan, methods=["POST"]),
            Route("/tokenize", about.tokenize, methods=["POST"]),
            generating("/v1/chat/completions", ChatEndpoint(settings)),
            generating("/v1/completions", CompletionsEndpoint(settings)),
            generating("/v1/responses", ResponsesEndpoint(settings, about.stored)),
            Route("/v1/responses/{name}", about.response),
            Route("/v1/responses/{name}", about.delete_response, methods=["DELETE"]),
            *page,
        ],
        exception_handlers={
            Problem: _problem,
            BrimError: _brim_problem,
            HTTPException: _http_problem,
            ClientGone: _nobody_there,
            Exception: _bug,
        },
    )
    return guarded(app, settings, tuple(route.path for route in page))


def guarded(app: ASGIApp, settings: ServeSettings, open_paths: Sequence[str] = ()) -> KeyCheckedApp:
    """An application behind the keys of a server; `open_paths` ask for none, besides `/health`."""
    local_only = not settings.api_keys and not settings.insecure
    keys = Keys(settings.api_keys, settings.key_weights, settings.salt_secret)
    return KeyCheckedApp(app, keys, local_only=local_only, open_to_all=frozenset((*OPEN_TO_ALL, *open_paths)))


class _About:
    """The endpoints that generate nothing."""

    def __init__(
        self, lifecycle: ServerLifecycle, settings: ServeSettings, metrics: Metrics, request_log: RequestLog
    ) -> None:
        self._lifecycle = lifecycle
        self._settings = settings
        self._metrics = metrics
        self._request_log = request_log
        self._created = int(time.time())
        self.stored = StoredResponses()

    async def health(self, request: Request) -> Response:
        status, found = self._lifecycle.report()
        return JSONResponse(found, status)

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def openapi(self, request: Request) -> Response:
        """What the server takes and gives, as far as it is known now."""
        model = served_model(self._settings, self._lifecycle.running)
        return JSONResponse(document(model, keys=bool(self._settings.api_keys)))

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._settings.model_name:
            raise Problem(404, f"model: there is no '{name:.60}' here", param="model", code="model_not_found")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        found = {
            "id": self._settings.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "brim",
            "root": self._settings.model_name,  # vLLM's and SGLang's: what an adapter was made of
        }
        running = self._lifecycle.running
        return found if running is None else found | {"max_model_len": running.engine.longest_request}

    async def response(self, request: Request) -> Response:
        """A stored answer."""
        name = request.path_params["name"]
        kept = self.stored.find(request.state.tenant.name, name)
        if kept is None:
            raise _no_such_response(name)
        return Response(kept.response, media_type="application/json")

    async def delete_response(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not self.stored.delete(request.state.tenant.name, name):
            raise _no_such_response(name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def memory(self, request: Request) -> Response:
        """The ledger; with `?after=N`, only the events and samples whose number is above N."""
        running = self._lifecycle.running or self._lifecycle.admit()
        after = _after(request)
        tenant: Tenant = request.state.tenant
        share = share_of(tenant, None if request.client is None else request.client.host)
        asking = Asking(
            tenant.salt,
            running.gate.report(share),
            dict(self._request_log.under_way),
            self._lifecycle.watch.report(after),
        )  # what belongs to this thread is copied here
        return JSONResponse(
            {"model": self._settings.model_name, **await asyncio.to_thread(memory_report, running, asking)}
        )

    async def tokenize(self, request: Request) -> Response:
        """A prompt, or the messages of a chat, as tokens."""
        limits = self._settings.limits
        body = await read_body(request, limits)
        found = await parsed(body)
        running = self._lifecycle.admit()
        longest = running.engine.longest_request
        asked = await checked(partial(read_tokenize, found, served_model(self._settings, running)), len(body))
        if isinstance(asked, TokenizedPrompt):
            (tokens,) = await running.tokenising.texts(
                [asked.prompt], special=asked.add_special_tokens, longest=longest, only_counted=True
            )
        else:
            job = ChatJob(asked, limits, longest, None, salt=request.state.tenant.salt)
            tokens = (await running.tokenising.chat(job, only_counted=True)).tokens
        return JSONResponse({"count": len(tokens), "max_model_len": longest, "tokens": list(tokens)})


class _Plans:
    """The page's planner."""

    def __init__(self, settings: ServeSettings, planning: Planning) -> None:
        self._settings = settings
        self._planning = planning

    async def catalogue(self, request: Request) -> Response:
        return JSONResponse(await self._planning.catalogue())

    async def plan(self, request: Request) -> Response:
        body = await read_body(request, self._settings.limits)
        return JSONResponse(await self._planning.plan(PlanQuery.read_body(await parsed(body), ServedModel())))


def _after(request: Request) -> int:
    others = sorted(set(request.query_params) - {"after"})
    if others:
        raise invalid(f"{others[0]:.40}", "there is no such parameter; `after` is one")
    text = request.query_params.get("after", "0")
    if not text.isdecimal() or len(text) > _DIGITS:
        raise invalid("after", "it must be the last_number of an earlier report")
    return int(text)


def _no_such_response(name: str) -> Problem:
    return Problem(404, f"response: there is no stored '{name:.60}' here", param="response_id", code="not_found")


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return JSONResponse(error.body, error.status, dict(error.headers))


async def _brim_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, BrimError)
    return await _problem(request, problem_of(error))


async def _nobody_there(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the router says: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    said = {
        404: f"there is no {request.url.path} here",
        405: f"method {request.method} is not allowed for {request.url.path}",
    }
    message = said.get(error.status_code, str(error.detail))
    return JSONResponse(Problem(error.status_code, message).body, error.status_code, error.headers)


async def _bug(request: Request, error: Exception) -> Response:
    """An error that nobody foresaw: the server's log has its traceback."""
    return JSONResponse(Problem(500, "internal server error", kind=SERVER).body, 500)
