"""Ranks that meet in collectives: each looks for the memory of a step before anybody enters it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brim.errors import OutOfMemory  # noqa: E402
from brim.fit.fit import fit  # noqa: E402
from brim.fit.ranks import ONE_RANK, FitRanks  # noqa: E402
from brim.records.fit import AttemptOutcome, FitReport  # noqa: E402
from brim.records.memory import StressShape  # noqa: E402
from brim.units import KIB  # noqa: E402
from brim.vllm.runner.lockstep import Lockstep  # noqa: E402
from tests.unit.fit.sizable import HonestEngine, WatchedProbe, request  # noqa: E402
from tests.unit.fit.test_ranks import KEPT, on_ranks  # noqa: E402


class Meeting(HonestEngine):
    """An engine whose warm-ups and steps have a collective: a rank that is missing there breaks it."""

    lockstep = Lockstep()
    collective = Barrier(1)
    taken: tuple[int, ...] = ()  # bytes that a neighbour takes before each stress; the last stay
    stressed = 0
    short_at = 0  # the stress that runs out of memory behind its collective

    def build(self, kv_tokens: int) -> None:
        with self.lockstep.allocation():
            super().build(kv_tokens)
        with self.lockstep.warm_up():
            self.collective.wait()

    def stress(self, shape: StressShape) -> None:
        with self._neighbour(), self.lockstep.step(shape.title):
            super().stress(shape)
            self.collective.wait()
            if self.stressed == self.short_at:
                raise OutOfMemory("in the sampler", 4 * KIB)

    @contextmanager
    def _neighbour(self) -> Iterator[None]:
        taken = self.taken[min(self.stressed, len(self.taken) - 1)] if self.taken else 0
        self.stressed += 1
        self.probe.budget_bytes -= taken
        try:
            yield
        finally:
            self.probe.budget_bytes += taken


def fit_together(made: list[Meeting]) -> list[Any]:
    barrier = Barrier(len(made), timeout=5)

    def task(ranks: FitRanks) -> FitReport:
        engine = made[ranks.rank]
        engine.collective, engine.lockstep = barrier, Lockstep(ranks, engine.probe)
        return fit(engine, engine.probe, request(), engine.price, ranks=ranks)

    return on_ranks(len(made), task)


def meeting(*budgets: int) -> list[Meeting]:
    return [Meeting(WatchedProbe(budget)) for budget in budgets]


def test_replicas_end_at_the_size_of_the_smallest() -> None:
    reports = fit_together(meeting(256 * KIB, 200 * KIB))
    assert [report.kv_tokens for report in reports] == [(200 * KIB - KEPT) // 512] * 2


def test_memory_that_one_rank_lost_is_missed_before_the_collective() -> None:
    made = meeting(256 * KIB, 256 * KIB)
    made[1].taken = (0, 0, 0, 0, 8 * KIB)  # after the four steps that are measured
    reports = fit_together(made)
    assert [[one.outcome for one in report.attempts] for report in reports] == [
        [AttemptOutcome.OUT_OF_MEMORY, AttemptOutcome.PROVEN]
    ] * 2
    assert reports[0].attempts == reports[1].attempts
    assert reports[0].attempts[0].shortfall_bytes == 8 * KIB


def test_a_kv_cache_that_one_rank_cannot_allocate_shrinks_all_before_they_warm_up() -> None:
    made = meeting(256 * KIB, 256 * KIB)
    made[1].faults = {("build", 2): OutOfMemory("taken", 16 * KIB)}
    reports = fit_together(made)
    assert [report.attempts[0].shortfall_bytes for report in reports] == [16 * KIB] * 2
    assert len({report.kv_tokens for report in reports}) == 1


def test_a_step_that_runs_out_of_memory_behind_its_collectives_ends_so_on_all() -> None:
    made = meeting(256 * KIB, 256 * KIB)
    made[0].short_at = 5  # the first one after the measurement
    reports = fit_together(made)
    assert [[one.outcome for one in report.attempts] for report in reports] == [
        [AttemptOutcome.OUT_OF_MEMORY, AttemptOutcome.PROVEN]
    ] * 2


def test_only_a_step_s_own_peak_is_learned() -> None:
    probe = WatchedProbe(64 * KIB)
    lockstep = Lockstep(ONE_RANK, probe)
    with probe:
        early = torch.empty(40 * KIB, dtype=torch.uint8)
        del early
        with lockstep.step("smaller than what came before"):
            torch.empty(8 * KIB, dtype=torch.uint8)
        held = torch.empty(30 * KIB, dtype=torch.uint8)
        with lockstep.step("no step has made a peak yet"):
            torch.empty(20 * KIB, dtype=torch.uint8)
        with lockstep.step("the same again"):
            pass
        more = torch.empty(20 * KIB, dtype=torch.uint8)
        with pytest.raises(OutOfMemory) as refused, lockstep.step("20 KiB were taken, 14 are free"):
            raise AssertionError("the step must not begin")
        assert refused.value.missing_bytes == 6 * KIB
        del held, more
