"""The exact size of stock vLLM by two starts, for a version whose private names Brim does not know.

    python -m brim.vllm.stock.two_starts FILE MODEL [flags of vllm serve]      # writes a `Measured` as JSON

The first start, here, is stock vLLM with the same arguments and a small KV cache. The worst load that the API allows
runs through it, and every worker is asked by RPC for the peak of its memory; only public interfaces are used. What is
left beside that peak, and beside what neighbours hold and were promised, is the size of the second start. Unlike a fit
it is measured and not proven, so more is kept back: the canary, and the allocator's rounding.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from copy import copy
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

from brim.errors import BrimError, DoesNotFit
from brim.records.fit import CUDA_ROUNDING_BYTES
from brim.records.memory import MemoryReading
from brim.units import format_bytes
from brim.vllm.refusals import refusals
from brim.vllm.settings import WorkerSettings, read_settings
from brim.vllm.stock.first_cache import first_kv_bytes
from brim.vllm.stock.load import DemandingRequests
from brim.vllm.stock.readings import EXTENSION, RankMemory, rank_memory
from brim.vllm.stock.serve_arguments import ServeArguments, serve_arguments

_ANSWER_TOKENS = 8
_SCORED = 8  # every so many prompts one is scored


@dataclass(frozen=True, slots=True)
class Measured:
    """The size of the second start; None: it is started as it was asked for, and why."""

    kv_cache_memory_bytes: int | None
    why: str = ""


def second_size(
    ranks: Iterable[RankMemory], first_kv_bytes: int, settings: WorkerSettings, utilization: float | None = None
) -> int:
    """The KV cache that fits beside the peak of everything else, on the tightest rank; a utilization is a cap."""
    return min(_size_on(rank, first_kv_bytes, settings, utilization) for rank in ranks)


def _size_on(rank: RankMemory, first_kv_bytes: int, settings: WorkerSettings, utilization: float | None) -> int:
    reading = rank.reading
    left = (
        min(
            reading.total_bytes - reading.other_bytes - rank.keep_free_bytes,  # driver, context, kernels, neighbours
            _limit_bytes(reading, settings, utilization) - _outside_bytes(reading),
        )
        - (reading.peak_reserved_bytes - first_kv_bytes)  # this process at its peak, without KV
        - settings.canary_bytes
        - CUDA_ROUNDING_BYTES
    )
    return floor(left * Fraction(settings.memory_fraction))


def _limit_bytes(reading: MemoryReading, settings: WorkerSettings, utilization: float | None) -> int:
    """The most that this process may hold of the device."""
    total, share = reading.total_bytes, settings.share
    limits = [total]
    if utilization is not None:
        limits.append(round(total * utilization))
    if share.bytes is not None:
        limits.append(share.bytes)
    if share.fraction is not None:
        neighbours = reading.other_bytes - _outside_bytes(reading)
        limits.append(floor((total - neighbours) * Fraction(share.fraction)))
    return min(limits)


def _outside_bytes(reading: MemoryReading) -> int:
    """What this process holds outside its allocator: its context and kernels. 0 where the driver does not say."""
    held = reading.process_bytes
    return 0 if held is None else max(0, held - reading.reserved_bytes)


def measured(words: list[str]) -> Measured:
    """The size for a command, if there is anything to size."""
    given = serve_arguments(words)
    settings = read_settings(given.engine.additional_config, os.environ)
    why = _why_not(given, settings)
    return Measured(None, why) if why else Measured(_measured_size(given, settings))


def _measured_size(given: ServeArguments, settings: WorkerSettings) -> int:
    """Start stock vLLM small, run the load, and compute the size of the next start."""
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    first = first_kv_bytes(settings, given.engine, on_cpu=on_cpu)
    ranks = asyncio.run(_loaded(given, first))
    capped = given.utilization_given and not on_cpu  # there it is the reading's total
    size = second_size(ranks, first, settings, given.engine.gpu_memory_utilization if capped else None)
    if size <= 0:
        raise DoesNotFit(
            f"nothing is left for the KV cache; the shortfall is {format_bytes(-size)}", missing_bytes=-size
        )
    return size


def _why_not(given: ServeArguments, settings: WorkerSettings) -> str:
    """Why there is nothing to measure; empty where there is."""
    if not settings.enabled:
        return "Brim is switched off"
    config = copy(given.engine).create_engine_config(_usage())
    cache = config.cache_config
    if cache.kv_cache_memory_bytes is not None or cache.num_gpu_blocks_override is not None:
        return "its size is given, and is not validated"
    return "; ".join(one.what for one in refusals(config) if one.stock)


def _usage() -> Any:
    """That of a server: vLLM's defaults depend on it."""
    from vllm.usage.usage_lib import UsageContext

    return UsageContext.OPENAI_API_SERVER


async def _loaded(given: ServeArguments, first_kv_bytes: int) -> list[RankMemory]:
    """The memory of every rank after the worst load."""
    from vllm import AsyncLLMEngine

    arguments = copy(given.engine)
    arguments.kv_cache_memory_bytes, arguments.worker_extension_cls = first_kv_bytes, EXTENSION
    engine = AsyncLLMEngine.from_engine_args(arguments, usage_context=_usage())
    try:
        await asyncio.gather(*(_answered(engine, str(number), *one) for number, one in enumerate(_worst_load(engine))))
        return [rank_memory(told) for told in await engine.collective_rpc("brim_memory")]
    finally:
        engine.shutdown()


async def _answered(engine: Any, name: str, prompt: Any, drawn: Any) -> None:
    async for _ in engine.generate(prompt, drawn, name):
        pass


def _worst_load(engine: Any) -> list[tuple[Any, Any]]:
    """As many requests as may run, at full length; some prompts are scored."""
    config = engine.vllm_config
    length = config.model_config.max_model_len - _ANSWER_TOKENS - 1
    makes = DemandingRequests(config)
    rows = config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size
    return [makes.request(length, _ANSWER_TOKENS, scored=number % _SCORED == 0) for number in range(rows)]


def main(file: str, *words: str) -> None:
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as vLLM's own command
    try:
        found = measured(list(words))
    except BrimError as error:
        raise SystemExit(f"brim vllm: {error}") from None
    Path(file).write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
