"""The server's memory while it is under load, where it has `/v1/memory`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from brim.bench.records import MemoryPoint
from brim.client.client import Client, ConnectionFailed

_SECONDS = 1.0


class MemoryWatch:
    """Looks once a second until it is cancelled; there are no points where the server does not tell."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.points: list[MemoryPoint] = []

    async def watch(self, began: float) -> None:
        while await self.look(began):
            await asyncio.sleep(_SECONDS)

    async def look(self, began: float) -> bool:
        """One point; whether there may be more."""
        try:
            found = await self._client.get("/v1/memory")
        except ConnectionFailed:
            return bool(self.points)  # a busy server may be slow to tell
        if found.status != 200:
            return False
        point = _point(found.json(), time.perf_counter() - began)
        if point is not None:
            self.points.append(point)
        return point is not None


def _point(found: Any, at: float) -> MemoryPoint | None:
    """A point, from a report that has what is needed."""
    try:
        kv, requests, health, now = found["kv"], found["requests"], found["health"], found.get("now")
        return MemoryPoint(
            at=at,
            kv_blocks=kv["blocks"],
            kv_held=kv["blocks_held"],
            kv_cached=kv["blocks_cached"],
            running=requests["running"],
            waiting=requests["waiting"],
            preemptions=requests["preemptions"],
            rescues=health["rescues"],
            ended_by_memory=health["ended_requests"],
            device_used_bytes=now["total_bytes"] - now["free_bytes"] if now else None,
        )
    except (KeyError, TypeError):
        return None
