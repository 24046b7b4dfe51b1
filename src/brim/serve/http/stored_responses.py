"""Responses of `/v1/responses` after they were asked for: read, followed, cancelled, listed by their input, forgotten.

Those that run in the background are found among them; each key finds its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from brim.serve.background import BackgroundAnswers
from brim.serve.problems import Problem, invalid
from brim.serve.stored import MOST_ITEMS, StoredResponse, StoredResponses

if TYPE_CHECKING:
    from starlette.requests import Request

Json = dict[str, Any]
USUAL_ITEMS = 20  # of one page
_DIGITS = 9  # of a number in a query


class ResponseStore:
    """The endpoints, and what they find."""

    def __init__(self) -> None:
        self.stored = StoredResponses()
        self.background = BackgroundAnswers()

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/v1/responses/{name}", self.read),
            Route("/v1/responses/{name}", self.delete, methods=["DELETE"]),
            Route("/v1/responses/{name}/cancel", self.cancel, methods=["POST"]),
            Route("/v1/responses/{name}/input_items", self.input_items),
        ]

    async def read(self, request: Request) -> Response:
        tenant, name = _named(request)
        query = _query(request, "stream", "starting_after", "include", "include[]", "include_obfuscation")
        if _flag(query, "stream"):
            return self._followed(tenant, name, query)
        running = self.background.running(tenant, name)
        if running is not None:
            return JSONResponse(running.response)
        return _written(self._find(tenant, name).response)

    def _followed(self, tenant: str, name: str, query: dict[str, str]) -> Response:
        after = _number(query, "starting_after", -1, 0, 10**_DIGITS)
        found = self.background.replayed(tenant, name)
        if found is None:
            if self.background.running(tenant, name) is None:
                self._find(tenant, name)
            raise invalid("stream", "the events of this response are not kept: ask for it with background and stream")
        return StreamingResponse(
            found.followed(after), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def delete(self, request: Request) -> Response:
        tenant, name = _named(request)
        running = self.background.running(tenant, name)
        if running is not None:
            await running.cancel()
        self.background.forget(tenant, name)
        if not self.stored.delete(tenant, name):
            raise _missing(name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        """One that runs ends where it is; one that has ended stays as it is."""
        tenant, name = _named(request)
        running = self.background.running(tenant, name)
        if running is not None:
            await running.cancel()
        found = self._find(tenant, name).response
        if not (await _parsed(found))["background"]:
            said = "Cannot cancel a synchronous response: only those that were asked for with background can be"
            raise Problem(400, said, param="response_id", code="invalid_value")
        return _written(found)

    async def input_items(self, request: Request) -> Response:
        """The items of the conversation up to the response, page by page."""
        tenant, name = _named(request)
        query = _query(request, "limit", "order", "after", "include", "include[]")
        limit = _number(query, "limit", USUAL_ITEMS, 1, MOST_ITEMS)
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid("order", f"{order!r:.40} is not one of asc, desc")
        running = self.background.running(tenant, name)
        given = await asyncio.to_thread(_given, self._find(tenant, name)) if running is None else running.items
        items = [_item(one, f"{name.replace('resp_', 'item_', 1)}_{number}") for number, one in enumerate(given)]
        if order == "desc":
            items.reverse()
        after = query.get("after")
        if after is not None:
            place = next((number for number, one in enumerate(items) if one["id"] == after), None)
            if place is None:
                raise invalid("after", f"there is no item '{after:.60}' in the input of this response")
            items = items[place + 1 :]
        page = items[:limit]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
        return JSONResponse({"object": "list", "data": page, "has_more": len(items) > limit, **ends})

    def _find(self, tenant: str, name: str) -> StoredResponse:
        found = self.stored.find(tenant, name)
        if found is None:
            raise _missing(name)
        return found


def _given(kept: StoredResponse) -> Sequence[Json]:
    """The items that stand before the output."""
    items, output = json.loads(kept.items), json.loads(kept.response)["output"]
    found: list[Json] = items[: len(items) - len(output)]
    return found


def _item(item: Json, name: str) -> Json:
    """With an id, this one where it came without."""
    found = {"id": name, "type": "message", **item}
    if found["type"] == "message":
        found.setdefault("status", "completed")
        if isinstance(found.get("content"), str):
            kind = "output_text" if found.get("role") == "assistant" else "input_text"
            found["content"] = [{"type": kind, "text": found["content"]}]
    return found


def _named(request: Request) -> tuple[str, str]:
    return request.state.tenant.name, request.path_params["name"]


def _query(request: Request, *names: str) -> dict[str, str]:
    others = sorted(set(request.query_params) - set(names))
    if others:
        raise invalid(f"{others[0]:.40}", f"there is no such parameter; there are {', '.join(names)}")
    return dict(request.query_params)


def _flag(query: dict[str, str], name: str) -> bool:
    found = query.get(name, "false").lower()
    if found not in ("true", "false"):
        raise invalid(name, f"{found!r:.40} is not true or false")
    return found == "true"


def _number(query: dict[str, str], name: str, usual: int, least: int, most: int) -> int:
    found = query.get(name)
    if found is None:
        return usual
    if not found.isdecimal() or len(found) > _DIGITS or not least <= int(found) <= most:
        raise invalid(name, f"{found!r:.40} is not a number from {least} to {most}")
    return int(found)


def _written(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _parsed(body: bytes) -> Json:
    found: Json = await asyncio.to_thread(json.loads, body)
    return found


def _missing(name: str) -> Problem:
    said = f"Response with id '{name:.60}' not found: it was not stored, was deleted, or has given way to newer ones"
    return Problem(404, said, param="response_id", code="not_found")
