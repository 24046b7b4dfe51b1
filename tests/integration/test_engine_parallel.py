"""Tensor parallelism: two gloo ranks on the CPU give the tokens of one process. No test waits longer than its limit."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.errors import InvalidRequest
from tests.integration.parallel_ranks import Case, Outcome, answer, run
from tests.integration.rank_processes import forked, listen
from tests.integration.tiny_models import tiny_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


ONE_KV_HEAD = (("num_key_value_heads", 1),)
SPLIT = [  # in the second place: the part of the KV cache that a rank holds
    (Case("llama"), 1 / 2),
    (Case("llama", ONE_KV_HEAD), 1),
    (Case("qwen3"), 1 / 2),
    (Case("gemma2"), 1 / 2),
    (Case("gemma3_text"), 1 / 2),
    (Case("mixtral"), 1 / 2),
    (Case("qwen3_moe", ONE_KV_HEAD), 1),
    (Case("gemma4_text"), None),  # layers with two KV heads, and layers with one
]
SAMPLED = Case("llama", temperature=1.0)
DUMMY = Case("llama", source="config")
FROM_FOLDER = Case("llama", source="folder")
DRAFTED = Case("llama", speculate="lookup")
NO_PLAN = Case("gpt_bigcode")
ODD_HEADS = Case("qwen3", (("num_attention_heads", 3), ("num_key_value_heads", 3)))


def ranks(*tasks: tuple[Any, ...], limit: float = 90) -> list[dict[str, Any]]:
    """What two ranks report, by task. None of them outlives the call."""
    context = forked()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found: list[dict[str, Any]] = [{}, {}]
    ends: dict[Any, int] = {}
    processes = []
    for rank in range(2):
        here, there = context.Pipe(duplex=False)
        ends[here] = rank
        processes.append(context.Process(target=run, args=(rank, 2, port, there, list(tasks))))
        processes[-1].start()
        there.close()
    listen(processes, ends, limit, lambda rank, said: found[rank].update([said]))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "folder"
    tiny_model("llama", seed=1).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def reports(folder: Path) -> list[dict[str, Any]]:
    cases = [*(case for case, _ in SPLIT), SAMPLED, DUMMY, replace(FROM_FOLDER, source=str(folder)), DRAFTED]
    cases += [NO_PLAN, ODD_HEADS]
    late, dead = (str(folder.parent / name) for name in ("late", "dead"))
    return ranks(("answer_all", cases), ("with_deadline",), ("disagree",), ("late", late), ("dead", dead))


@pytest.fixture(scope="module")
def reported(reports: list[dict[str, Any]]) -> list[dict[Case, Any]]:
    found = [report.get("answer_all") for report in reports]
    assert [type(one) for one in found] == [dict, dict], found
    return [{replace(case, source=Path(case.source).name): said for case, said in one.items()} for one in found]


@pytest.mark.parametrize(("case", "part"), SPLIT, ids=lambda value: str(value))
def test_two_ranks_answer_what_one_process_answers(
    reported: list[dict[Case, Outcome]], case: Case, part: float | None
) -> None:
    alone = answer(case, tensor_parallel=False)
    for found in (reported[0][case], reported[1][case]):
        assert found.tokens == alone.tokens
        assert found.scores == pytest.approx(alone.scores, abs=1e-3)
        assert found.weight_bytes < 0.6 * alone.weight_bytes
        if part is not None:
            assert found.kv_bytes == part * alone.kv_bytes
        else:
            assert alone.kv_bytes / 2 < found.kv_bytes < alone.kv_bytes


def test_a_folder_and_random_weights_are_split_too(reported: list[dict[Case, Outcome]], folder: Path) -> None:
    for case, same in ((DUMMY, DUMMY), (FROM_FOLDER, replace(FROM_FOLDER, source=str(folder)))):
        alone = answer(same, tensor_parallel=False)
        assert reported[0][case].tokens == reported[1][case].tokens == alone.tokens
        assert reported[0][case].weight_bytes < 0.6 * alone.weight_bytes


def test_ranks_draw_the_same_without_a_seed(reported: list[dict[Case, Outcome]]) -> None:
    assert reported[0][SAMPLED] == reported[1][SAMPLED]
    assert reported[0][SAMPLED].tokens != reported[0][replace(SAMPLED, temperature=0.0)].tokens


def test_ranks_draft_the_same(reported: list[dict[Case, Outcome]]) -> None:
    assert reported[0][DRAFTED] == reported[1][DRAFTED]
    assert reported[0][DRAFTED].tokens == answer(replace(DRAFTED, speculate=None), tensor_parallel=False).tokens
    assert reported[0][DRAFTED].drafted > 0


def test_what_cannot_be_split_is_refused(reported: list[dict[Case, str]]) -> None:
    assert "no plan for the layers of 'gpt_bigcode'" in reported[0][NO_PLAN]
    assert "3 query heads and 3 KV heads cannot be sharded over 2 ranks" in reported[1][ODD_HEADS]


def test_a_deadline_falls_into_the_same_step(reports: list[dict[str, Any]]) -> None:
    assert reports[0]["with_deadline"] == reports[1]["with_deadline"]
    assert reports[0]["with_deadline"][0] == "deadline"


def test_ranks_that_plan_different_steps_say_so(reports: list[dict[str, Any]]) -> None:
    assert "ranks [1] scheduled a different step 1 than rank 0" in reports[0]["disagree"]
    assert reports[0]["disagree"] == reports[1]["disagree"]


@pytest.mark.parametrize("end", ["late", "dead"])
def test_a_lost_rank_ends_the_others(reports: list[dict[str, Any]], end: str) -> None:
    assert "another rank has exited or timed out" in reports[0][end]
    assert reports[1].get(end) == (None if end == "dead" else "came too late")


def test_without_torchrun_there_are_no_ranks() -> None:
    from brim.engine.ranks.ranks import Ranks

    with pytest.raises(InvalidRequest, match=r"RANK is not set.*torchrun"):
        Ranks.join("cpu", environment={})


def test_several_machines_are_refused() -> None:
    from brim.engine.ranks.ranks import Ranks

    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    with pytest.raises(InvalidRequest, match="several machines"):
        Ranks.join("cpu", environment={**environment, "LOCAL_WORLD_SIZE": "2"})
