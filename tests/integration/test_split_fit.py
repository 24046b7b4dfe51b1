"""Fits of a tensor-parallel engine on gloo ranks with a budget each: a problem of one rank ends all of them at once.

Ranks that have ended stay alive until the test is over: no rank may depend on another's exit. No test waits longer than
its limit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.records.fit import AttemptOutcome  # noqa: E402
from brim.units import KIB  # noqa: E402
from tests.integration.rank_processes import forked, on_ranks, said_of  # noqa: E402
from tests.integration.split_ranks import (  # noqa: E402
    Said,
    Scene,
    answers,
    collectives,
    fitted,
    make_engine,
    steps,
    unknown_collective,
)

AT_ONCE_SECONDS = 30.0  # a few are the work of a fit; torch.distributed would wait for half an hour
SHORT = AttemptOutcome.OUT_OF_MEMORY
KINDS = ["llama", "mixtral", "minimax_m2"]  # the last one gathers inside its layers


@pytest.fixture(scope="module")
def context() -> Any:
    return forked()


@pytest.fixture(scope="module")
def one_process() -> tuple[tuple[int, ...], ...]:
    """What an engine of one process answers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = make_engine("llama", tensor_parallel=False)
    engine.build(256)
    found = answers(engine)
    torch.set_num_threads(threads)
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_out_of_memory_of_one_rank_shrinks_all(
    context: Any, tmp_path: Path, one_process: tuple[tuple[int, ...], ...], size: int
) -> None:
    victim = size - 1
    reports = on_ranks(
        context,
        size,
        tmp_path,
        ("stress 'prefill'", fitted, Scene(victim, taken_bytes=120 * KIB, when="validate")),
        ("build", fitted, Scene(victim, taken_bytes=250 * KIB, when="attempt")),
    )
    for where in ("stress 'prefill'", "build"):
        said: list[Said] = said_of(reports, where)
        for one in said:
            assert one == said[0]
            assert one.error == ""
            assert [attempt.outcome for attempt in one.attempts] == [SHORT, SHORT, AttemptOutcome.PROVEN]
            assert [words.partition(":")[0] for words in one.short] == [
                f"rank {victim} of {size}, build",  # of the probe, which is too large for it
                f"rank {victim} of {size}, {where}",
                f"rank {victim} of {size}, {where}",
            ]
            assert one.together == one.survived > 0
            assert one.tokens == one_process
            assert one.left_bytes == 0
            assert one.seconds < AT_ONCE_SECONDS


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_a_canary_that_one_rank_cannot_hold_shrinks_all(context: Any, tmp_path: Path, size: int) -> None:
    scene = Scene(0, taken_bytes=230 * KIB, when="attempt", canary_bytes=64 * KIB)
    said: list[Said] = said_of(on_ranks(context, size, tmp_path, ("canary", fitted, scene)), "canary")
    for one in said:
        assert replace(one, attempts=()) == replace(said[0], attempts=())
        assert [attempt.outcome for attempt in one.attempts] == [SHORT, SHORT, AttemptOutcome.PROVEN]
        assert len(one.short) == 2  # the probe and the second attempt: nothing of the engine failed in the first
        assert one.left_bytes == 0
        assert one.seconds < AT_ONCE_SECONDS


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_an_error_of_one_rank_ends_all(context: Any, tmp_path: Path, size: int) -> None:
    victims = {"stress 'prefill'": size - 1, "build": 0}
    reports = on_ranks(
        context,
        size,
        tmp_path,
        ("stress 'prefill'", fitted, Scene(victims["stress 'prefill'"], boom="step")),
        ("build", fitted, Scene(victims["build"], boom="build")),
    )
    for where, victim in victims.items():
        said: list[Said] = said_of(reports, where)
        own = said.pop(victim)
        assert (own.error, own.words) == ("RuntimeError", "boom")
        for one in said:
            assert one.error == "DeviceError"
            assert f"rank {victim} failed in {where} (RuntimeError: boom)" in one.words
        for one in (own, *said):
            assert one.left_bytes == 0
            assert one.seconds < AT_ONCE_SECONDS


def test_without_the_others_everything_takes_the_same(context: Any, tmp_path: Path) -> None:
    tasks = [("collectives", collectives), *((kind, steps, kind) for kind in KINDS)]
    reports = on_ranks(context, 2, tmp_path, *tasks, ("unknown", unknown_collective))
    for found in said_of(reports, "collectives"):
        for name, (together, alone) in found.items():
            assert together == alone, name
    for kind in KINDS:
        for shapes in said_of(reports, kind):
            for together, alone in shapes:
                assert together == alone, kind
                assert alone.peak_bytes > 10 * KIB
    for report in reports:
        assert "the collective 'c10d::send' has no local replacement" in report["unknown"]
