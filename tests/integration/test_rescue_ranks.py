"""Out of memory on one of several gloo ranks: all of them run the step again, and none waits for the one that failed.

The ranks stay alive until the test is over, and no test waits longer than its limit. The collectives are real, with two
and four processes on the CPU.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.requests.request import FinishReason  # noqa: E402
from brim.records.health import Status  # noqa: E402
from brim.units import KIB  # noqa: E402
from tests.integration.rank_processes import forked, on_ranks, said_of  # noqa: E402
from tests.integration.rescue_ranks import KINDS, VICTIM, Load, Served, befallen, refused, streamed, taken_part  # noqa: E402

# Older transformers have no plan for splitting the hybrid.
HYBRID = ("granitemoehybrid",) if tuple(map(int, version("transformers").split(".")[:2])) > (5, 17) else ()
FEW = ("llama", *HYBRID)
SOAK_SECONDS = 3600.0


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks say of everything that befalls the second."""
    tasks = [("taken part", taken_part), ("befallen", befallen), ("streamed", streamed)]
    tasks += [(kind, refused, kind, VICTIM, 2) for kind in FEW]
    return on_ranks(forked(), 2, tmp_path_factory.mktemp("ranks"), *tasks, limit_seconds=180.0)


def check_refused(said: list[tuple[Served, list[tuple[int, Served]]]]) -> None:
    for number, (undisturbed, runs) in enumerate(said):
        assert undisturbed == said[0][0]
        assert (undisturbed.health.rescues, undisturbed.health.status) == (0, Status.READY)
        for (at, run), (_, first) in zip(runs, said[0][1], strict=True):
            assert run.answers == undisturbed.answers, f"rank {number}, allocation {at}"
            assert run.health == first.health, f"rank {number}, allocation {at}"
            found = run.health
            assert (found.rescues, found.ended_requests, found.rebuilds) == (1, 0, 0), f"allocation {at}: {found}"
            assert found.canary_held
            assert run.left_bytes == 0, f"rank {number}, allocation {at}"


@pytest.mark.parametrize("kind", FEW)
def test_a_refused_allocation_of_one_rank_changes_no_answer(kind: str, reports: list[dict[str, Any]]) -> None:
    check_refused(said_of(reports, kind))


def test_the_same_with_four_ranks(tmp_path: Path) -> None:
    check_refused(said_of(on_ranks(forked(), 4, tmp_path, ("llama", refused, "llama", 0, 1)), "llama"))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("victim", [0, 1])
def test_the_same_at_every_place(kind: str, victim: int, tmp_path: Path) -> None:
    found = on_ranks(forked(), 2, tmp_path, (kind, refused, kind, victim, None), limit_seconds=SOAK_SECONDS)
    check_refused(said_of(found, kind))


def runs_of(reports: list[dict[str, Any]], scene: str, left_bytes: tuple[int, int] = (0, 0)) -> list[Served]:
    """One scene on all ranks, if answers and health are the same on all, and no more memory is held than this."""
    runs: list[Served] = [one[scene] for one in said_of(reports, "befallen")]
    for run in runs:
        assert run.answers == runs[0].answers
        assert run.health == runs[0].health
    assert tuple(run.left_bytes for run in runs) == left_bytes
    return runs


def test_a_rank_takes_part_in_every_collective_that_can_be_foretold(reports: list[dict[str, Any]]) -> None:
    found, of_victim = said_of(reports, "taken part")
    assert found == of_victim
    assert [name for name, finite in found.items() if not finite] == ["all_to_all_single", "functional all_to_all"]


def test_ranks_answer_what_one_process_answers(reports: list[dict[str, Any]]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = Load("llama", tensor_parallel=False).run()
    torch.set_num_threads(threads)
    assert runs_of(reports, "undisturbed")[0].answers == alone.answers


def test_a_request_that_one_rank_cannot_run_ends_on_all_and_no_other_does(reports: list[dict[str, Any]]) -> None:
    wanted = dict(runs_of(reports, "undisturbed")[0].answers)
    run = runs_of(reports, "too large")[0]
    tokens, _, reason, error, *_ = run.answers.pop(("2", 0))
    assert tokens == wanted.pop(("2", 0))[0][:2]
    assert reason is FinishReason.ERROR
    assert "even alone, with the canary of 64.0 KiB released: rank 1 of 2, a step: the device is out of mem" in error
    assert run.answers == wanted
    assert (run.health.ended_requests, run.health.rebuilds) == (1, 0)


def test_an_audit_that_fails_on_one_rank_rebuilds_on_all(reports: list[dict[str, Any]]) -> None:
    wanted = runs_of(reports, "undisturbed")[0].answers
    run = runs_of(reports, "a tensor left behind", (0, 16 * KIB))[0]
    assert run.answers == wanted
    assert run.health.rebuilds == 1
    assert "rank 1: 16.0 KiB of tensors were left behind" in run.health.reason


def test_a_canary_that_one_rank_cannot_hold_is_tried_again_on_all(reports: list[dict[str, Any]]) -> None:
    run = runs_of(reports, "a canary that does not fit")[0]
    assert run.answers == runs_of(reports, "undisturbed")[0].answers
    assert run.health.canary_held
    assert run.health.rescues == 1


def test_another_error_of_one_rank_is_raised_on_all_and_they_may_go_on(reports: list[dict[str, Any]]) -> None:
    runs = runs_of(reports, "another error")
    assert runs[0].answers == runs_of(reports, "undisturbed")[0].answers
    assert runs[VICTIM].raised == ("Injected: injected",)
    (told,) = runs[0].raised
    assert "DeviceError: tensor parallelism: rank 1 failed in a step (Injected: injected)" in told
    assert runs[0].health.rescues == 0


def test_a_streaming_engine_of_several_ranks_survives(reports: list[dict[str, Any]]) -> None:
    for first, later, health in said_of(reports, "streamed"):
        assert first == later
        assert [one[2] for one in first] == [FinishReason.LENGTH] * 3
        assert (health.rescues, health.status) == (1, Status.DEGRADED)
