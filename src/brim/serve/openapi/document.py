"""The document: every endpoint with what it takes and gives."""

from __future__ import annotations

from typing import Any

from brim.model.tasks import ModelTask
from brim.serve.openapi import responses
from brim.serve.openapi.pooling import pooling_paths
from brim.serve.openapi.transcription import TRANSCRIBED, form_body
from brim.serve.requests.chat import ChatBody
from brim.serve.requests.completion import CompletionBody
from brim.serve.requests.messages import CountTokensBody, MessagesBody
from brim.serve.requests.plan import PlanQuery
from brim.serve.requests.responses_api import ResponseBody
from brim.serve.requests.tokenize import DetokenizeBody, tokenize_schema
from brim.serve.requests.types import Schema, ServedModel
from brim.serve.stored import MOST_ITEMS
from brim.version import __version__

Json = dict[str, Any]
JSON, EVENTS, PLAIN = "application/json", "text/event-stream", "text/plain"
_KEY, _KEY_HEADER = "key", "key_header"
_PROBLEM, _ANTHROPIC = "Problem", "AnthropicProblem"
_REFUSALS = {
    400: "a field is wrong, or the prompt leaves no room for an answer",
    401: "the key is missing or wrong",
    404: "there is no such thing here",
    405: "not with this method",
    408: "the body came too slowly",
    413: "the body is too large",
    415: "the body does not say that it is JSON",
    421: "asked for by a name that is not of this machine",
    429: "the queue is full, or this client has as many inside as it may; Retry-After says when to come again",
    500: "this request could not run; others go on",
    503: "the server is starting, draining, or has failed",
    504: "the deadline passed before the request began",
}
_GENERATE = ("/v1/chat/", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/audio/")
_ASKING = (400, 408, 413, 415, 503)
_GENERATING = (*_ASKING, 404, 429, 500, 504)
_PLANNING = (*_ASKING, 429)
_AFTER = {
    "name": "after",
    "in": "query",
    "required": False,
    "description": "leave out what an earlier report with this last_number had",
    "schema": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
}


def _asked(name: str, said: str, schema: Schema) -> Json:
    """A parameter of a query."""
    return {"name": name, "in": "query", "required": False, "description": said, "schema": schema}


_FOLLOWING = [
    _asked("stream", "its events, where it was asked for with background and stream", {"type": "boolean"}),
    _asked(
        "starting_after", "leave out events up to this number", {"type": "integer", "minimum": 0, "maximum": 10**9 - 1}
    ),
]
_PAGING = [
    _asked("limit", "items of a page", {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS}),
    _asked("order", "the first or the last item first", {"enum": ["asc", "desc"]}),
    _asked("after", "the last item of the page before", {"type": "string"}),
]


def document(model: ServedModel, keys: bool) -> Json:
    """All of it. `keys`: the server asks for one."""
    found: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "brim serve",
            "version": __version__,
            "description": "OpenAI's API and Anthropic's messages, and what the server says about its memory.",
        },
        "paths": _served_paths(model),
        "components": {"schemas": {_PROBLEM: responses.PROBLEM, _ANTHROPIC: responses.ANTHROPIC_PROBLEM}},
    }
    if keys:
        found["components"]["securitySchemes"] = {
            _KEY: {"type": "http", "scheme": "bearer"},
            _KEY_HEADER: {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        found["security"] = [{_KEY: []}, {_KEY_HEADER: []}]
    return found


def _served_paths(model: ServedModel) -> Json:
    """Those that work with the model that is served."""
    paths = _paths(model)
    if model.task is ModelTask.GENERATE:
        return paths | _hearing_paths(model) if model.audio else paths
    others = {path: one for path, one in paths.items() if not path.startswith(_GENERATE)}
    return others | pooling_paths(model, _computes)


def _hearing_paths(model: ServedModel) -> Json:
    answers = {JSON: TRANSCRIBED, PLAIN: {"type": "string"}, EVENTS: {}}
    said = {"transcriptions": "What is said in an audio", "translations": "The same, in English"}
    return {
        f"/v1/audio/{name}": {"post": _operation(text, answers, _GENERATING) | form_body(model)}
        for name, text in said.items()
    }


def _paths(model: ServedModel) -> Json:
    return {
        "/v1/chat/completions": {"post": _generates("An answer to a chat", ChatBody.openapi(model), responses.CHAT)},
        "/v1/completions": {
            "post": _generates("A text that goes on from a prompt", CompletionBody.openapi(model), responses.COMPLETION)
        },
        "/v1/responses": {"post": _generates("An answer, as items", ResponseBody.openapi(model), responses.RESPONSE)},
        "/v1/messages": {
            "post": _generates(
                "An answer to a chat, as Anthropic writes it",
                MessagesBody.openapi(model),
                responses.MESSAGE,
                problem=_ANTHROPIC,
            )
        },
        "/v1/messages/count_tokens": {
            "post": _operation("Tokens of a chat", {JSON: responses.INPUT_TOKENS}, (*_ASKING, 404), _ANTHROPIC)
            | _body(CountTokensBody.openapi(model))
        },
        "/v1/responses/{id}": {
            "parameters": [_path_parameter("id")],
            "get": _operation("A stored answer", {JSON: responses.RESPONSE, EVENTS: {}}, (400, 404))
            | {"parameters": _FOLLOWING},
            "delete": _operation("Forget a stored answer", {JSON: responses.DELETED}, (404,)),
        },
        "/v1/responses/{id}/cancel": {
            "parameters": [_path_parameter("id")],
            "post": _operation("End an answer in the background", {JSON: responses.RESPONSE}, (400, 404)),
        },
        "/v1/responses/{id}/input_items": {
            "parameters": [_path_parameter("id")],
            "get": _operation("What an answer was given to", {JSON: responses.ITEMS}, (400, 404))
            | {"parameters": _PAGING},
        },
        "/v1/models": {"get": _operation("The model", {JSON: responses.MODELS})},
        "/v1/models/{name}": {
            "parameters": [_path_parameter("name")],
            "get": _operation("The model", {JSON: responses.MODEL}, (404,)),
        },
        "/v1/memory": {
            "get": _operation("The ledger of memory", {JSON: responses.MEMORY}, (400, 503)) | {"parameters": [_AFTER]}
        },
        "/v1/plan": {
            "post": _operation("What fits on a GPU", {JSON: {"type": "object"}}, _PLANNING)
            | _body(PlanQuery.openapi(model))
        },
        "/v1/catalogue": {"get": _operation("What plans may be asked for", {JSON: {"type": "object"}}, (429, 503))},
        "/tokenize": {
            "post": _operation("Text as tokens", {JSON: responses.TOKENIZED}, (*_ASKING, 404))
            | _body(tokenize_schema(model))
        },
        "/detokenize": {
            "post": _operation("Tokens as text", {JSON: responses.DETOKENIZED}, (*_ASKING, 404))
            | _body(DetokenizeBody.openapi(model))
        },
        "/tokenizer_info": {
            "get": _operation("The tokenizer's settings", {JSON: responses.TOKENIZER_INFO}, (400, 503))
        },
        "/health": {"get": _health({JSON: {"schema": responses.HEALTH}})},
        "/ping": {"get": _health({}), "post": _health({})},
        "/load": {"get": _operation("How many requests are under way", {JSON: responses.LOAD})},
        "/version": {"get": _operation("The version of Brim", {JSON: responses.VERSION})},
        "/metrics": {"get": _operation("Metrics for Prometheus", {PLAIN: {"type": "string"}})},
        "/openapi.json": {"get": _operation("This document", {JSON: {"type": "object"}})},
    }


def _computes(said: str, body: Schema, answer: Schema) -> Json:
    return _operation(said, {JSON: answer}, (*_ASKING, 404, 429, 500)) | _body(body)


def _generates(said: str, body: Schema, answer: Schema, problem: str = _PROBLEM) -> Json:
    deadline = {
        "name": "X-Deadline-Seconds",
        "in": "header",
        "required": False,
        "description": "seconds after which the answer ends where it is",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    }
    answers = {JSON: answer, EVENTS: {}}
    return _operation(said, answers, _GENERATING, problem) | _body(body) | {"parameters": [deadline]}


def _operation(said: str, answers: dict[str, Schema], refusals: tuple[int, ...] = (), problem: str = _PROBLEM) -> Json:
    """`problem` names the shape of its refusals."""
    done = {"description": "done", "content": {kind: {"schema": schema} for kind, schema in answers.items()}}
    refused = {str(status): _refusal(status, problem) for status in sorted({*refusals, 401, 405, 421})}
    return {"summary": said, "responses": {"200": done, **refused}}


def _health(content: Json) -> Json:
    """The same by its status alone where there is no content."""
    body = {"content": content} if content else {}
    answers = {
        "200": {"description": "ready or degraded", **body},
        "405": _refusal(405),
        "421": _refusal(421),
        "503": {"description": "starting, draining or failed", **body},
    }
    return {"summary": "How the server is", "responses": answers, "security": []}


def _refusal(status: int, problem: str = _PROBLEM) -> Json:
    content = {JSON: {"schema": {"$ref": f"#/components/schemas/{problem}"}}}
    return {"description": _REFUSALS[status], "content": content}


def _body(schema: Schema) -> Json:
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


def _path_parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
