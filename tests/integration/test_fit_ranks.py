"""A fit on several gloo ranks, each with a budget of its own: they end at one size, or all with an error at once.

Ranks that have ended stay alive until the test is over: no rank may depend on another's exit, except where one is
killed. No test waits longer than its limit.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from brim.errors import BrimError, OutOfMemory
from brim.units import KIB

torch = pytest.importorskip("torch")

from tests.integration.rank_processes import forked, listen  # noqa: E402
from tests.unit.fit.sizable import Fault, HonestEngine, WatchedProbe, request  # noqa: E402

LIMIT_SECONDS = 30.0  # no test takes a tenth of it, but that of the rank that hangs
AT_ONCE_SECONDS = 20.0
PATIENCE_SECONDS = 60.0  # of the exchange: longer than any test, so that nothing ends by giving up
PHASES = [
    *(("build", 1), ("prefill", 1), ("decode", 1), ("teardown", 1)),
    *(("build", 2), ("prefill", 3), ("decode", 3)),
]
KEPT = (16 + 4 + 32 + 8) * KIB


@dataclass(frozen=True, slots=True)
class Scene:
    """What befalls which rank."""

    budgets: tuple[int, ...]
    victim: int = -1
    phase: tuple[str, int] = ("", 0)
    how: str = ""  # raises, runs out of memory, is killed, hangs
    patience: float = PATIENCE_SECONDS


@dataclass(frozen=True, slots=True)
class Said:
    """How a fit ended on a rank."""

    kv_tokens: int | None = None
    attempts: tuple[Any, ...] = ()
    error: str = ""
    words: str = ""
    left_bytes: int = 0  # beside the weights
    seconds: float = field(default=0.0, compare=False)


def befall(how: str) -> Fault:
    fates: dict[str, Fault] = {
        "raises": RuntimeError("boom"),
        "runs out of memory": OutOfMemory("injected", 3 * KIB),
        "is killed": lambda: os._exit(9),
        "hangs": lambda: time.sleep(LIMIT_SECONDS),
    }
    return fates[how]


def play(rank: int, scene: Scene, meeting: str, to_test: Connection, from_test: Connection) -> None:
    """A rank."""
    from datetime import timedelta

    import torch.distributed as distributed

    from brim.fit.ranks import gathered

    torch.set_num_threads(1)
    size = len(scene.budgets)
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=LIMIT_SECONDS)
    )
    exchange = gathered(seconds=scene.patience)
    engine = HonestEngine(WatchedProbe(scene.budgets[rank]))
    if rank == scene.victim:
        engine.faults = {scene.phase: befall(scene.how)}
    to_test.send(fitted(rank, engine, exchange))
    from_test.recv()  # until the test is over
    os._exit(0)


def fitted(rank: int, engine: HonestEngine, exchange: Any) -> Said:
    from brim.fit.fit import fit
    from brim.fit.ranks import FitRanks

    started = time.monotonic()
    try:
        report = fit(engine, engine.probe, request(), engine.price, ranks=FitRanks(rank, exchange))
    except (BrimError, RuntimeError) as error:
        left = engine.probe.live_bytes - engine.weights_bytes
        return Said(None, (), type(error).__name__, str(error), left, time.monotonic() - started)
    engine.assert_proven(report.kv_tokens, 8 * KIB)
    return Said(report.kv_tokens, report.attempts, seconds=time.monotonic() - started)


@pytest.fixture(scope="module")
def context() -> Any:
    return forked()


def on_ranks(context: Any, scene: Scene, folder: Path) -> dict[int, Said]:
    """What each rank said that lived to say something."""
    processes, holds = [], []
    ends: dict[Any, int] = {}
    for rank in range(len(scene.budgets)):
        here, there = context.Pipe(duplex=False)
        waiting, hold = context.Pipe(duplex=False)
        processes.append(
            context.Process(target=play, args=(rank, scene, str(folder / "meeting"), there, waiting), daemon=True)
        )
        processes[-1].start()
        there.close()
        ends[here] = rank
        holds.append(hold)
    said: dict[int, Said] = {}
    ended: set[int] = set()

    def gone(rank: int) -> None:
        assert (rank, scene.how) == (scene.victim, "is killed"), f"rank {rank} died"
        ended.add(rank)

    awaited = len(scene.budgets) - (scene.how == "hangs")
    listen(
        processes, ends, LIMIT_SECONDS, said.__setitem__, enough=lambda: len(said) + len(ended) == awaited, gone=gone
    )
    return said


def budgets(size: int) -> tuple[int, ...]:
    return tuple((256 + 10 * number) * KIB for number in reversed(range(size)))


@pytest.mark.parametrize("size", [2, 4])
def test_all_end_at_the_size_of_the_smallest(context: Any, tmp_path: Path, size: int) -> None:
    said = on_ranks(context, Scene(budgets(size)), tmp_path)
    assert {one.kv_tokens for one in said.values()} == {(256 * KIB - KEPT) // 512}
    assert len(said) == size


@pytest.mark.parametrize("size", [2, 4])
def test_out_of_memory_of_one_shrinks_all(context: Any, tmp_path: Path, size: int) -> None:
    scene = Scene(budgets(size), victim=0, phase=("decode", 3), how="runs out of memory")
    said = on_ranks(context, scene, tmp_path)
    assert {one.kv_tokens for one in said.values()} == {(256 * KIB - KEPT - 3 * KIB) // 512}
    assert len({one.attempts for one in said.values()}) == 1
    assert [len(one.attempts) for one in said.values()] == [2] * size


@pytest.mark.parametrize("size", [2, 4])
def test_one_that_does_not_fit_ends_all(context: Any, tmp_path: Path, size: int) -> None:
    said = on_ranks(context, Scene((61 * KIB, *budgets(size)[1:])), tmp_path)
    assert [said[rank].error for rank in range(size)] == ["DoesNotFit"] * size
    assert "rank 0 failed (DoesNotFit" in said[1].words
    assert [one.left_bytes for one in said.values()] == [0] * size


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: f"{phase[0]}-{phase[1]}")
@pytest.mark.parametrize("size", [2, 4])
def test_an_exception_of_one_ends_all_at_once(context: Any, tmp_path: Path, size: int, phase: tuple[str, int]) -> None:
    said = on_ranks(context, Scene(budgets(size), victim=1, phase=phase, how="raises"), tmp_path)
    assert sorted(said) == list(range(size))
    assert said.pop(1).words == "boom"
    for one in said.values():
        assert one.error == "DeviceError"
        assert "rank 1 failed (RuntimeError: boom)" in one.words
        assert one.left_bytes == 0
        assert one.seconds < AT_ONCE_SECONDS


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: f"{phase[0]}-{phase[1]}")
@pytest.mark.parametrize(("size", "victim"), [(2, 1), (2, 0), (4, 2)])
def test_a_killed_rank_is_noticed_by_all_at_once(
    context: Any, tmp_path: Path, size: int, victim: int, phase: tuple[str, int]
) -> None:
    said = on_ranks(context, Scene(budgets(size), victim=victim, phase=phase, how="is killed"), tmp_path)
    assert sorted(said) == [rank for rank in range(size) if rank != victim]
    for one in said.values():
        assert one.error == "DeviceError"
        assert "a rank does not respond" in one.words
        assert one.left_bytes == 0
        assert one.seconds < AT_ONCE_SECONDS


def test_a_rank_that_hangs_is_given_up(context: Any, tmp_path: Path) -> None:
    scene = Scene(budgets(4), victim=3, phase=("prefill", 3), how="hangs", patience=2.0)
    said = on_ranks(context, scene, tmp_path)
    assert sorted(said) == [0, 1, 2]
    for one in said.values():
        assert one.error == "DeviceError"
        assert 1.5 < one.seconds < AT_ONCE_SECONDS
