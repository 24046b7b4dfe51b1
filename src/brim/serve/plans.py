"""Plans for the page, made in a process of their own: the engine and the event loop lose no time to them.

The process starts with the first plan that is asked for. A few may wait for it; more are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any, TypeVar

from brim.errors import BrimError, InvalidRequest
from brim.serve.prepare.processes import processes
from brim.serve.problems import SERVER, Problem
from brim.serve.requests.plan import KV_DTYPES, MOST_GPUS, WEIGHTS, PlanQuery

Result = TypeVar("Result")
_MOST_WAITING = 16
_MOST_SECONDS = 20.0


class Planning:
    """Answers from one worker, which is replaced when it has died or takes too long."""

    def __init__(self, new_pool: Callable[[], Executor] = processes) -> None:
        self._new_pool = new_pool
        self._pool: Executor | None = None
        self._waiting = 0

    async def catalogue(self) -> dict[str, Any]:
        return await self._run(catalogue)

    async def plan(self, asked: PlanQuery) -> dict[str, Any]:
        return await self._run(made, asked)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        if self._waiting >= _MOST_WAITING:
            raise Problem(429, f"{self._waiting} plans are waiting; try again in 1 s", code="queue_full", retry_after=1)
        self._pool = self._pool or self._new_pool()
        self._waiting += 1
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
            return await asyncio.wait_for(running, _MOST_SECONDS)
        except (BrokenProcessPool, TimeoutError):
            self.close()
            raise Problem(503, "the process that makes plans has died; ask again", kind=SERVER, retry_after=1) from None
        finally:
            self._waiting -= 1


# -- in the worker -------------------------------------------------------------------------------------------------


def made(asked: PlanQuery) -> dict[str, Any]:
    """A plan, with the keys of `brim plan --json`."""
    from brim.api import plan

    try:
        found = plan(
            asked.model,
            gpu=f"{asked.gpus}x{asked.gpu}",
            max_len=asked.max_len,
            concurrency=asked.concurrency,
            kv_dtype=asked.kv_dtype,
            weights=asked.weights,
            image_pixels=asked.image_pixels,
            engine=asked.engine,
            batch_tokens=asked.batch_tokens,
            graphs=asked.graphs,
            pp=asked.pp,
            dp=asked.dp,
            ep=asked.ep,
            gpu_layers=asked.gpu_layers,
            cpu_moe=asked.cpu_moe,
        )
    except BrimError as error:
        raise InvalidRequest(str(error)) from None  # as it can cross between processes
    return found.to_json()


@cache
def catalogue() -> dict[str, Any]:
    """What may be asked for."""
    from brim.model.catalogue import entries
    from brim.model.source import load_model
    from brim.planning.devices import catalogue as gpus
    from brim.planning.engines import ENGINES
    from brim.planning.placement.experts import has_experts
    from brim.records.model import MediaType

    models = [(entry, load_model(entry.name)) for entry in entries().values()]
    return {
        "object": "brim.catalogue",
        "models": [
            {
                "name": entry.name,
                "hub_id": entry.hub_id,
                "family": spec.family,
                "parameters": spec.parameters,
                "max_positions": spec.max_positions,
                "layers": len(spec.layers),
                "experts": has_experts(spec),
                "images": any(tower.media is MediaType.IMAGE for tower in spec.towers),
            }
            for entry, spec in models
        ],
        "gpus": [{"key": one.key, "name": one.name, "total_bytes": one.total_bytes} for one in gpus()],
        "engines": list(ENGINES),
        "kv_dtypes": list(KV_DTYPES),
        "weights": list(WEIGHTS),
        "most_gpus": MOST_GPUS,
    }
