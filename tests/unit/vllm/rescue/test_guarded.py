"""The worker's side of a rescue, around a runner that is told when to run out of memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from brim.vllm.rescue.guarded import StepGuard
from brim.vllm.rescue.marks import FailedStep, mark


class Generator:
    """A state that drawing advances."""

    def __init__(self) -> None:
        self.state = 0

    def get_state(self) -> int:
        return self.state

    def set_state(self, state: int) -> None:
        self.state = state


def worker(second_runner: bool = False) -> Any:
    batch = SimpleNamespace(generators={0: Generator()}, prev_sampled_token_ids="old", prev_req_id_to_index={"a": 0})
    runner = SimpleNamespace(
        input_batch=batch, num_prompt_logprobs={"a": 3}, requests={"a": None}, execute_model_state="old"
    )
    if second_runner:
        runner = SimpleNamespace(execute_model_state="old")
    made = SimpleNamespace(model_runner=runner, use_v2_model_runner=second_runner, encoded=["old"])
    made.reset_encoder_cache = made.encoded.clear
    return made


def step(epoch: int | None = 0) -> Any:
    made = SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id="a"), SimpleNamespace(req_id="b")])
    if epoch is not None:
        mark(made, epoch)
    return made


def refused(*_: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_a_step_of_another_scheduler_is_not_guarded() -> None:
    guard = StepGuard(worker())
    with pytest.raises(torch.OutOfMemoryError):
        guard.execute(step(None), refused)
    with pytest.raises(torch.OutOfMemoryError):
        guard.sample(refused)


def test_a_forward_that_fails_is_a_failed_step_whatever_vllm_asks_for_next() -> None:
    one = worker()
    guard = StepGuard(one)
    failed = guard.execute(step(), refused)
    assert isinstance(failed, FailedStep)
    assert failed.unknown == ("b",)
    assert "out of memory" in failed.reason
    assert guard.sample(lambda: "tokens") == failed
    batch = one.model_runner.input_batch
    assert (one.model_runner.execute_model_state, one.encoded) == (None, [])
    assert (batch.prev_sampled_token_ids, batch.prev_req_id_to_index) == (None, None)


def test_what_drawing_changed_is_put_back() -> None:
    one = worker()
    guard, runner = StepGuard(one), one.model_runner

    def drawn() -> Any:
        runner.input_batch.generators[0].state += 1
        runner.num_prompt_logprobs.clear()
        return refused()

    assert guard.execute(step(), lambda _: None) is None
    assert isinstance(guard.sample(drawn), FailedStep)
    assert (runner.input_batch.generators[0].state, runner.num_prompt_logprobs) == (0, {"a": 3})


def test_after_a_failure_the_next_epoch_runs() -> None:
    guard = StepGuard(worker())
    guard.execute(step(0), refused)
    assert guard.execute(step(1), lambda _: None) is None
    assert guard.sample(lambda: "tokens") == "tokens"


def test_errors_of_other_kinds_are_vllm_s() -> None:
    def broken(_: Any) -> Any:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        StepGuard(worker()).execute(step(), broken)


def test_the_second_runner_has_no_more_to_forget() -> None:
    one = worker(second_runner=True)
    guard = StepGuard(one)
    assert guard.execute(step(), lambda _: None) is None
    failed = guard.sample(refused)
    assert isinstance(failed, FailedStep)
    assert (failed.unknown, one.model_runner.execute_model_state) == ((), None)
