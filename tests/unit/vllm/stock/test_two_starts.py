"""The size of the second start, and what is not measured."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from brim.records.lease import SizeWish
from brim.records.memory import MemoryReading
from brim.reserve.devices import Budget
from brim.reserve.hold import take
from brim.units import GIB, MIB
from brim.vllm.settings import WorkerSettings
from brim.vllm.stock import two_starts
from brim.vllm.stock.readings import MemoryFigures, RankMemory, rank_memory, without_promised
from brim.vllm.stock.serve_arguments import ServeArguments
from brim.vllm.stock.two_starts import Measured, measured, second_size

PLAIN = WorkerSettings(canary_bytes=0)


def reading(peak: int, other: int = GIB) -> MemoryReading:
    return MemoryReading(80 * GIB, 0, 0, 0, 0, peak_reserved_bytes=peak, other_bytes=other)


USUAL = RankMemory(reading(peak=38 * GIB))


def test_what_is_left_beside_the_peak_is_for_the_kv_cache() -> None:
    found = second_size([USUAL], 20 * GIB, WorkerSettings(canary_bytes=256 * MIB))
    assert found == (80 - 1 - 18) * GIB - 256 * MIB - 40 * MIB


def test_the_tightest_rank_decides() -> None:
    ranks = [USUAL, RankMemory(reading(peak=39 * GIB)), RankMemory(reading(peak=38 * GIB, other=3 * GIB))]
    assert second_size(ranks, 20 * GIB, PLAIN) == second_size(ranks[2:], 20 * GIB, PLAIN)


def test_a_utilization_is_a_cap() -> None:
    assert second_size([USUAL], 20 * GIB, PLAIN, utilization=0.5) == (40 - 18) * GIB - 40 * MIB


def test_what_is_kept_free_is_not_for_the_kv_cache() -> None:
    alone = second_size([USUAL], 20 * GIB, PLAIN)
    assert alone - second_size([replace(USUAL, keep_free_bytes=4 * GIB)], 20 * GIB, PLAIN) == 4 * GIB


def test_a_fraction_of_what_is_left() -> None:
    whole = second_size([USUAL], 20 * GIB, PLAIN)
    assert second_size([USUAL], 20 * GIB, replace(PLAIN, memory_fraction=0.5)) == whole // 2


@pytest.mark.parametrize(
    ("share", "part_bytes"), [(SizeWish(bytes=30 * GIB), 30 * GIB), (SizeWish(fraction=0.5), (80 - 2) * GIB // 2)]
)
def test_a_share_limits_the_whole_process(share: SizeWish, part_bytes: int) -> None:
    """Neighbours hold 2 GiB; this process 1 GiB outside its allocator, which is of its part."""
    held = replace(reading(peak=38 * GIB, other=3 * GIB), reserved_bytes=30 * GIB, process_bytes=31 * GIB)
    found = second_size([RankMemory(held)], 20 * GIB, replace(PLAIN, share=share))
    assert found == part_bytes - GIB - 18 * GIB - 40 * MIB


LAB = Budget("cpu:two-starts", 80 * GIB)


def test_what_neighbours_were_promised_is_left_to_them() -> None:
    def size() -> int:
        return second_size([RankMemory(without_promised(reading(peak=38 * GIB), LAB))], 20 * GIB, PLAIN)

    alone = size()
    starting, held = take(LAB, 3 * GIB, "embedder", starting=True), take(LAB, 2 * GIB, "tower")
    try:
        beside = size()
    finally:
        starting.release()
        held.release()
    assert alone - beside == 5 * GIB


class Worker(MemoryFigures):
    """A stock worker on the CPU, as far as it matters."""

    device = SimpleNamespace(type="cpu")
    requested_cpu_memory = 100 * GIB
    vllm_config = SimpleNamespace(
        additional_config={"brim": {"budget": "80GiB", "budget_name": LAB.key, "keep_free": "1GiB"}}
    )


def test_a_stock_worker_tells_its_budget_its_promises_and_what_stays_free() -> None:
    lease = take(LAB, 3 * GIB, "embedder", starting=True)
    try:
        beside = rank_memory(Worker().brim_memory())
    finally:
        lease.release()
    alone = rank_memory(Worker().brim_memory())
    assert (beside.reading.other_bytes, alone.reading.other_bytes) == (3 * GIB, 0)
    assert (alone.reading.total_bytes, alone.keep_free_bytes) == (80 * GIB, GIB)


class Arguments(SimpleNamespace):
    """vLLM's arguments of an engine that would be sized."""

    additional_config: Any = None
    cache: Any = SimpleNamespace(kv_cache_memory_bytes=None, num_gpu_blocks_override=None)
    runner_type = "generate"

    def create_engine_config(self, usage: object) -> SimpleNamespace:
        return SimpleNamespace(cache_config=self.cache, model_config=SimpleNamespace(runner_type=self.runner_type))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (Arguments(additional_config={"brim": {"enabled": False}}), "switched off"),
        (Arguments(cache=SimpleNamespace(kv_cache_memory_bytes=5, num_gpu_blocks_override=None)), "size is given"),
        (Arguments(cache=SimpleNamespace(kv_cache_memory_bytes=None, num_gpu_blocks_override=5)), "size is given"),
        (Arguments(runner_type="pooling"), "a pooling model makes no tokens"),
    ],
)
def test_where_nothing_is_to_be_sized_vllm_starts_as_it_was_asked_for(
    arguments: Arguments, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_starts, "serve_arguments", lambda words: ServeArguments(arguments, False))
    monkeypatch.setattr(two_starts, "_usage", lambda: None)
    found = measured(["m"])
    assert found == Measured(None, found.why)
    assert why in found.why
