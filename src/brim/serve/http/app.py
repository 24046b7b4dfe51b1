"""The application: all endpoints, behind their keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from brim.errors import BrimError
from brim.serve.api.answering import CLIENT_LEFT, Answering, Endpoint
from brim.serve.api.chat import ChatEndpoint
from brim.serve.api.completions import CompletionsEndpoint
from brim.serve.api.embeddings import EmbeddingsEndpoint
from brim.serve.api.messages import MessagesEndpoint
from brim.serve.api.pooling import Pooling, PoolingEndpoint
from brim.serve.api.responses import ResponsesEndpoint
from brim.serve.api.scores import RerankEndpoint, ScoreEndpoint
from brim.serve.api.transcriptions import Transcribing
from brim.serve.http.keys import OPEN_TO_ALL, KeyCheckedApp, Keys, Tenant, share_of
from brim.serve.http.page import page_routes
from brim.serve.http.parsing import parsed
from brim.serve.http.reading import ClientGone, read_body
from brim.serve.http.stored_responses import ResponseStore
from brim.serve.http.tokens import TokenEndpoints
from brim.serve.http.warning_header import WarningHeaderApp
from brim.serve.lifecycle import ServerLifecycle, served_model
from brim.serve.log import RequestLog, RequestLogEntry
from brim.serve.memory import Asking, device_parts, memory_report
from brim.serve.metrics import Metrics
from brim.serve.openapi.document import document
from brim.serve.plans import Planning
from brim.serve.problems import SERVER, Problem, invalid, problem_of
from brim.serve.requests.plan import PlanQuery
from brim.serve.requests.types import ServedModel
from brim.serve.settings import ServeSettings
from brim.version import __version__

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

    request_log = RequestLog(write_log, count, lifecycle.watch.latencies)
    about = _About(lifecycle, settings, metrics, request_log)
    tokens = TokenEndpoints(lifecycle, settings)
    plans = _Plans(settings, planning or Planning())
    responses = ResponseStore()
    lifecycle.before_close.append(responses.background.close)
    page = page_routes()

    def generating(path: str, endpoint: Endpoint) -> Route:
        return Route(path, Answering(path, endpoint, lifecycle, settings, request_log), methods=["POST"])

    def pooling(path: str, endpoint: PoolingEndpoint) -> Route:
        return Route(path, Pooling(path, endpoint, lifecycle, settings, request_log), methods=["POST"])

    app = Starlette(
        routes=[
            Route("/health", about.health),
            Route("/ping", about.ping, methods=["GET", "POST"]),
            Route("/load", about.load),
            Route("/version", about.version),
            Route("/metrics", about.metrics),
            Route("/openapi.json", about.openapi),
            Route("/v1/models", about.models),
            Route("/v1/models/{name:path}", about.model),
            Route("/v1/memory", about.memory),
            Route("/v1/catalogue", plans.catalogue),
            Route("/v1/plan", plans.plan, methods=["POST"]),
            Route("/tokenize", tokens.tokenize, methods=["POST"]),
            Route("/detokenize", tokens.detokenize, methods=["POST"]),
            Route("/tokenizer_info", tokens.tokenizer_info),
            generating("/v1/chat/completions", ChatEndpoint(settings)),
            generating("/v1/completions", CompletionsEndpoint(settings)),
            generating("/v1/responses", ResponsesEndpoint(settings, responses.stored, responses.background)),
            generating("/v1/messages", MessagesEndpoint(settings)),
            Route("/v1/messages/count_tokens", tokens.count_tokens, methods=["POST"]),
            *responses.routes,
            *(
                Route(path, Transcribing(path, lifecycle, settings, request_log), methods=["POST"])
                for path in ("/v1/audio/transcriptions", "/v1/audio/translations")
            ),
            pooling("/v1/embeddings", EmbeddingsEndpoint(settings)),
            *(pooling(path, ScoreEndpoint(settings)) for path in ("/v1/score", "/score")),
            *(pooling(path, RerankEndpoint(settings)) for path in ("/v1/rerank", "/rerank", "/v2/rerank")),
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
    return guarded(WarningHeaderApp(app), settings, tuple(route.path for route in page))


def guarded(app: ASGIApp, settings: ServeSettings, open_paths: Sequence[str] = ()) -> KeyCheckedApp:
    """An application behind the keys of a server; `open_paths` ask for none, besides those that say how it is."""
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

    async def health(self, request: Request) -> Response:
        status, found = self._lifecycle.report()
        return JSONResponse(found, status)

    async def ping(self, request: Request) -> Response:
        """The status of `/health` alone, as SageMaker asks for it."""
        return Response(status_code=self._lifecycle.report()[0])

    async def load(self, request: Request) -> Response:
        """How many requests for answers are under way, those that wait included."""
        return JSONResponse({"server_load": len(self._request_log.under_way)})

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def metrics(self, request: Request) -> Response:
        running = self._lifecycle.running
        parts = () if running is None else await asyncio.to_thread(device_parts, running)
        return Response(self._metrics.page(parts), media_type=CONTENT_TYPE_LATEST)

    async def openapi(self, request: Request) -> Response:
        """What the server takes and gives, as far as it is known now."""
        model = served_model(self._settings, self._lifecycle.any_running)
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
        running = self._lifecycle.any_running
        if running is None:
            return found
        model = served_model(self._settings, running)
        takes = ["text", *(["image"] if model.images else []), *(["audio"] if model.audio else [])]
        return found | {"max_model_len": model.longest, "input_modalities": takes}

    async def memory(self, request: Request) -> Response:
        """The ledger; with `?after=N`, only the events and samples whose number is above N."""
        running = self._lifecycle.any_running or self._lifecycle.admit_any()
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


class _Plans:
    """The page's planner."""

    def __init__(self, settings: ServeSettings, planning: Planning) -> None:
        self._settings = settings
        self._planning = planning

    async def catalogue(self, request: Request) -> Response:
        return JSONResponse(await self._planning.catalogue())

    async def plan(self, request: Request) -> Response:
        body = await read_body(request, self._settings.limits)
        query = PlanQuery.read_body(await parsed(body), ServedModel(lenient=self._settings.lenient))
        return JSONResponse(await self._planning.plan(query))


def _after(request: Request) -> int:
    others = sorted(set(request.query_params) - {"after"})
    if others:
        raise invalid(f"{others[0]:.40}", "there is no such parameter; `after` is one")
    text = request.query_params.get("after", "0")
    if not text.isdecimal() or len(text) > _DIGITS:
        raise invalid("after", "it must be the last_number of an earlier report")
    return int(text)


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return JSONResponse(error.body_at(request.url.path), error.status, dict(error.headers))


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
    body = Problem(error.status_code, message).body_at(request.url.path)
    return JSONResponse(body, error.status_code, error.headers)


async def _bug(request: Request, error: Exception) -> Response:
    """An error that nobody foresaw: the server's log has its traceback."""
    return JSONResponse(Problem(500, "internal server error", kind=SERVER).body_at(request.url.path), 500)
