"""A replica: one fitted engine behind the application of `brim serve`, in an actor of Ray Serve.

It is ready when its engine is fitted. The first replica of a kind searches for its size; the others find it in the
store of fits and validate it. What comes from outside arrives through `answer`; the application, its keys and its log
are those of `brim serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray import serve

from brim.cli.fit import fit_wishes
from brim.cli.serve import EngineStarter, check_options, serve_settings, tokenising_of
from brim.errors import DeviceError
from brim.ray.arguments import ModelArguments
from brim.ray.first_fit import FirstFits
from brim.ray.ranks import RankActors
from brim.ray.replica_facts import ReplicaFacts
from brim.ray.router import name_of
from brim.ray.wire import Messages, Sending, Whole, answered, whole_answer
from brim.records.health import Status
from brim.serve.routing import RoutingReports
from brim.serve.service import Service, Starter

_STATISTICS_SECONDS = 10.0  # for an engine whose step takes long
_CLOSE_SECONDS = 20.0


class EngineReplica:
    """The class of the deployment; Ray Serve makes one object in each replica's process."""

    async def __init__(self, arguments: dict[str, Any], salt_secret: bytes) -> None:  # type: ignore[misc]
        chosen = ModelArguments(**arguments)
        options = chosen.serve_options()
        check_options(options)
        self.name = name_of(serve.get_replica_context().replica_id)
        say = partial(_say, self.name)
        self._leased = ExitStack()
        self._ranks = RankActors.start(chosen) if chosen.tensor_parallel > 1 else None
        settings = replace(serve_settings(options), salt_secret=salt_secret)
        self._service = Service(
            settings,
            FirstFits(self.starter(options, say), chosen.serve_words()),
            write_log=None if options.no_request_log else write_line,
            say=say,
            tokenising=tokenising_of(options),
        )
        self._reports = RoutingReports(self._service.lifecycle)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        await self._service.start()

    def starter(self, options: argparse.Namespace, say: Callable[[str], object]) -> Starter:
        """Makes the engine."""
        return EngineStarter(options, fit_wishes(options), self._leased, say, self._ranks)

    # -- requests ------------------------------------------------------------------------------------------------

    async def answer(self, sending: Sending, scope: dict[str, Any], body: bytes) -> AsyncGenerator[Messages, None]:
        """The ASGI messages of one answer, as they come."""
        async for messages in answered(self._service.app, scope, body):
            yield messages

    async def whole(self, scope: dict[str, Any], body: bytes) -> Whole:
        """One answer at once: of the endpoints that are asked of every replica."""
        return await whole_answer(self._service.app, scope, body, self.name)

    def node(self) -> str:
        """Where it runs, as Ray names it."""
        return str(ray.get_runtime_context().get_node_id())

    async def facts(self) -> ReplicaFacts:
        running = self._service.lifecycle.running
        assert running is not None, "a replica is ready when its engine is"
        engine = running.engine
        return ReplicaFacts(
            self._settings.model_name,
            engine.longest_request,
            engine.loop.scheduler.ledger.block_size,
            engine.loaded.vocab,
            running.started.tokenizer,
        )

    # -- what Ray Serve asks --------------------------------------------------------------------------------------

    async def record_routing_stats(self) -> dict[str, Any]:
        found = await asyncio.wait_for(self._reports.report(), _STATISTICS_SECONDS)
        return {} if found is None else found.to_wire()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The queue, and the part of the KV pool that is held."""
        running = self._service.lifecycle.running
        if running is None:
            return {}
        figures = running.engine.figures
        blocks = figures.blocks_held + figures.blocks_cached + figures.blocks_free
        return {
            "waiting": float(running.gate.inside - min(running.gate.inside, figures.running)),
            "running": float(figures.running),
            "held_part": figures.blocks_held / max(1, blocks),
        }

    def check_health(self) -> None:
        """An engine that has ended, or lost a rank, does not come back: Ray Serve starts another replica."""
        health = self._service.lifecycle.engine_health
        if health is not None and health.status is Status.ENDED:
            raise DeviceError(f"the engine has ended: {health.reason}")
        if self._ranks is not None:
            self._ranks.check()

    async def __del__(self) -> None:
        """Ray Serve has waited for the requests that could finish."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._service.close()
        finally:
            if self._ranks is not None:
                self._ranks.close()
            self._leased.close()


def _say(name: str, line: str) -> None:
    write_line(f"brim {name}: {line}\n")


def write_line(line: str) -> None:
    """To the log of this process, which Ray keeps."""
    sys.stderr.write(line)
    sys.stderr.flush()
