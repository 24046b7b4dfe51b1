"""Ranks in threads, with a budget each: they agree on every outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from brim.errors import DeviceError, DoesNotFit, InvalidRequest, OutOfMemory
from brim.fit.fit import fit, validate_stored
from brim.fit.ranks import ONE_RANK, Exchange, FitRanks
from brim.records.fit import Attempt, AttemptOutcome, FitReport
from brim.units import GIB, KIB, MIB

torch = pytest.importorskip("torch")

from tests.unit.fit.sizable import HonestEngine, WatchedProbe, request  # noqa: E402

KEPT = (16 + 4 + 32 + 8) * KIB


class Table:
    """Where threads exchange messages. A wait longer than a few seconds is a missing rank."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=5)
        self._words: list[Any] = [None] * size

    def seat(self, rank: int) -> Exchange:
        def exchange(word: Any) -> list[Any]:
            self._words[rank] = word
            self._barrier.wait()
            words = list(self._words)
            self._barrier.wait()
            return words

        return exchange


def on_ranks(size: int, task: Callable[[FitRanks], Any]) -> list[Any]:
    """What each rank returns or raises."""
    table = Table(size)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(task, FitRanks(rank, table.seat(rank))) for rank in range(size)]
    return [future.exception() or future.result() for future in futures]


def fit_all(engines: list[HonestEngine], **changes: Any) -> list[Any]:
    def task(ranks: FitRanks) -> FitReport:
        engine = engines[ranks.rank]
        return fit(engine, engine.probe, request(**changes), engine.price, ranks=ranks)

    return on_ranks(len(engines), task)


def engines(*budgets: int, **changes: Any) -> list[HonestEngine]:
    return [HonestEngine(WatchedProbe(budget), **changes) for budget in budgets]


def nothing_left(made: list[HonestEngine]) -> bool:
    return all(one.probe.live_bytes == one.weights_bytes for one in made)


def test_a_single_rank() -> None:
    assert ONE_RANK.fewest(5) == 5
    assert ONE_RANK.all(True)
    assert not ONE_RANK.all(False)
    assert ONE_RANK.agree("word")
    assert ONE_RANK.worst(Attempt(4, AttemptOutcome.PROVEN)) == Attempt(4, AttemptOutcome.PROVEN)


def test_outcomes_of_ranks_are_combined() -> None:
    oom = AttemptOutcome.OUT_OF_MEMORY
    attempts = [Attempt(9, AttemptOutcome.PROVEN), Attempt(9, oom, 5), Attempt(9, oom), Attempt(9, oom, 7)]
    assert on_ranks(4, lambda ranks: ranks.worst(attempts[ranks.rank])) == [Attempt(9, oom, 7)] * 4
    assert on_ranks(2, lambda ranks: ranks.worst(Attempt(9, oom))) == [Attempt(9, oom)] * 2
    assert on_ranks(3, lambda ranks: ranks.fewest(7 - ranks.rank)) == [5] * 3
    assert on_ranks(3, lambda ranks: ranks.all(ranks.rank != 1)) == [False] * 3
    assert on_ranks(3, lambda ranks: ranks.agree(ranks.rank // 2)) == [False] * 3
    assert on_ranks(3, lambda ranks: ranks.agree("same")) == [True] * 3


def test_a_failure_is_raised_as_it_is_where_it_happened_and_told_elsewhere() -> None:
    def task(ranks: FitRanks) -> None:
        with ranks.together("part"):
            if ranks.rank == 1:
                raise ValueError("boom")

    first, second, third = on_ranks(3, task)
    assert isinstance(second, ValueError)
    for told in (first, third):
        assert type(told) is DeviceError
        assert str(told) == "part: rank 1 failed (ValueError: boom); the fit ends on all ranks"


@pytest.mark.parametrize(("missing", "known"), [([None, 3, 7], 7), ([None, None, None], None)])
def test_out_of_memory_in_a_part_of_one_is_out_of_memory_on_all(missing: list[int | None], known: int | None) -> None:
    def task(ranks: FitRanks) -> None:
        with ranks.together("attempt"), ranks.fitting("step"):
            if ranks.rank > 0:
                raise OutOfMemory(f"mine {ranks.rank}", missing[ranks.rank])

    first, *others = on_ranks(3, task)
    assert (str(first), first.missing_bytes) == ("step: out of memory on rank 1", known)
    assert [(str(error), error.missing_bytes) for error in others] == [("mine 1", missing[1]), ("mine 2", missing[2])]


def test_after_a_failure_in_a_part_nobody_is_waited_for() -> None:
    """Each rank sends one message: where another came in too late, the barrier of this test would break."""

    def task(ranks: FitRanks) -> None:
        with ranks.together("attempt"), ranks.fitting("step"):
            if ranks.rank == 1:
                raise ValueError("boom")

    first, second = on_ranks(2, task)
    assert isinstance(second, ValueError)
    assert type(first) is DeviceError
    assert str(first) == "step: rank 1 failed (ValueError: boom); the fit ends on all ranks"


def test_an_error_is_not_hidden_by_ranks_that_are_gone() -> None:
    def gone(word: Any) -> list[Any]:
        raise DeviceError("a rank does not respond")

    with pytest.raises(ValueError, match="boom"), FitRanks(0, gone).together("part"):
        raise ValueError("boom")
    with pytest.raises(DeviceError, match="does not respond"), FitRanks(0, gone).together("part"):
        pass


@pytest.mark.parametrize("budgets", [(256, 200), (200, 256), (300, 256, 200, 256)])
def test_all_end_at_the_size_of_the_smallest(budgets: tuple[int, ...]) -> None:
    made = engines(*(budget * KIB for budget in budgets))
    reports = fit_all(made)
    expected = (200 * KIB - KEPT) // 512
    assert [report.kv_tokens for report in reports] == [expected] * len(budgets)
    assert [report.attempts for report in reports] == [(Attempt(expected, AttemptOutcome.PROVEN),)] * len(budgets)
    for engine in made:
        engine.assert_proven(expected, 8 * KIB)


@pytest.mark.parametrize("error", [OutOfMemory("known", 3 * KIB), OutOfMemory("unknown")])
def test_out_of_memory_on_one_shrinks_all(error: OutOfMemory) -> None:
    made = engines(256 * KIB, 256 * KIB, 256 * KIB)
    made[1].faults = {("decode", 3): error}
    reports = fit_all(made)
    first = (256 * KIB - KEPT) // 512
    second = first - 6 if error.missing_bytes else int(first * 512 * 0.95) // 512
    assert [report.kv_tokens for report in reports] == [second] * 3
    assert {report.attempts for report in reports} == {
        (Attempt(first, AttemptOutcome.OUT_OF_MEMORY, error.missing_bytes), Attempt(second, AttemptOutcome.PROVEN))
    }


def test_ranks_with_other_prices_agree_on_tokens_all_the_same() -> None:
    made = [*engines(256 * KIB), *engines(400 * KIB, token_bytes=1000)]
    made[0].faults = {("prefill", 3): OutOfMemory("missing", 10 * KIB)}
    reports = fit_all(made)
    assert reports[0].kv_tokens == reports[1].kv_tokens == (400 * KIB - KEPT) // 1000 - 10 * KIB // 512


def test_one_that_does_not_fit_ends_all_as_not_fitting() -> None:
    made = engines(256 * KIB, 61 * KIB, 256 * KIB, 256 * KIB)
    found = fit_all(made)
    assert [type(error) for error in found] == [DoesNotFit] * 4
    assert "the shortfall is" in str(found[1])
    assert "rank 1 failed (DoesNotFit: " in str(found[0])
    assert nothing_left(made)


def test_one_that_cannot_even_be_probed_ends_all() -> None:
    made = engines(256 * KIB, 40 * KIB)
    found = fit_all(made)
    assert [type(error) for error in found] == [DoesNotFit] * 2
    assert nothing_left(made)


def test_a_disturbed_measurement_is_repeated_on_all() -> None:
    made = [HonestEngine(WatchedProbe(GIB, neighbours)) for neighbours in ((0, 0, 0, 256 * MIB), ())]
    reports = fit_all(made)
    assert reports[0].kv_tokens == reports[1].kv_tokens
    assert [[tokens for name, tokens in one.events if name == "build"][:2] for one in made] == [[16, 16]] * 2


PHASES = [
    *(("build", 1), ("prefill", 1), ("decode", 1), ("prefill", 2), ("teardown", 1)),
    *(("build", 2), ("prefill", 3), ("decode", 3)),
]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("phase", PHASES)
def test_an_exception_on_one_ends_all(phase: tuple[str, int], size: int) -> None:
    made = engines(*[256 * KIB] * size)
    made[1].faults = {phase: RuntimeError("boom")}
    found = fit_all(made)
    assert str(found[1]) == "boom"
    for error in (*found[:1], *found[2:]):
        assert type(error) is DeviceError
        assert "rank 1 failed (RuntimeError: boom)" in str(error)
    assert nothing_left(made)


def test_a_wrong_request_of_one_ends_all() -> None:
    made = engines(256 * KIB, 256 * KIB)

    def task(ranks: FitRanks) -> FitReport:
        engine, fraction = made[ranks.rank], 1.0 - 2 * ranks.rank
        return fit(engine, engine.probe, request(memory_fraction=fraction), engine.price, ranks=ranks)

    assert [type(error) for error in on_ranks(2, task)] == [DeviceError, InvalidRequest]


def test_a_stored_size_that_fails_on_one_fails_on_all() -> None:
    before = engines(256 * KIB, 256 * KIB)
    stored = fit_all(before)[0]
    made = engines(256 * KIB, 250 * KIB)

    def task(ranks: FitRanks) -> FitReport | None:
        engine = made[ranks.rank]
        return validate_stored(engine, engine.probe, request(), engine.price, stored, ranks=ranks)

    assert on_ranks(2, task) == [None, None]
    assert nothing_left(made)
