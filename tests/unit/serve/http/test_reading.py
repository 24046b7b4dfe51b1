"""Work for a client that may leave."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

pytest.importorskip("starlette")

from brim.serve.http.reading import ClientGone, until_gone
from brim.serve.problems import Problem


class Body:
    """What a client has sent."""


async def stays() -> dict[str, Any]:
    return await asyncio.get_running_loop().create_future()


async def leaves() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def refuse(body: Body) -> None:
    await asyncio.sleep(0)
    raise Problem(400, "no")


async def answer(body: Body) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(("receive", "work", "ends"), [(stays, refuse, Problem), (leaves, answer, ClientGone)])
def test_a_request_that_has_ended_is_freed_at_once(receive: Any, work: Any, ends: type[Exception]) -> None:
    """What a body holds is mostly texts and numbers: many megabytes may wait for a collection that counts objects."""

    async def run() -> bool:
        body = Body()
        seen = weakref.ref(body)
        try:
            await until_gone(receive, work(body))
        except ends:
            del body
        await asyncio.sleep(0)  # what the loop has to do yet for tasks that have ended
        return seen() is None

    gc.disable()
    try:
        assert asyncio.run(run())
    finally:
        gc.enable()
