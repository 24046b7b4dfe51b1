"""Out-of-memory errors in a vLLM engine of this process, at chosen places of chosen steps, and what is left afterwards.

Used by `tests.vllm.rescues`. Errors are raised *before* what they stand in for: blocks that a step was to compute hold
what was in them before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brim.vllm.rescue.retry import StepRetry

PLACES = ("forward", "sampler", "logprobs", "scores", "noting", "adding", "drafts", "encoder")
Chosen = Callable[[int, Any, str], bool]  # number of the step, the step, the place


class Faults:
    """Counts the steps of an engine, and fails those that `chosen` says."""

    def __init__(self, llm: Any) -> None:
        core = llm.llm_engine.engine_core.engine_core
        self.scheduler = core.scheduler
        worker = core.model_executor.driver_worker.worker
        self.runner = worker.model_runner
        self.steps = self.raised = self.preempted = 0
        self.chosen: Chosen = never
        self._step: Any = None
        self._wrap(self.runner, "execute_model", self._noted)
        self._wrap(self.runner, "_model_forward", self._failing("forward"))
        self._wrap(self.runner, "_sample", self._failing("sampler"))
        self._wrap(self.runner.sampler, "gather_logprobs", self._failing("logprobs"))
        self._wrap(self.runner, "_get_prompt_logprobs_dict", self._failing("scores"))
        self._wrap(self.runner.input_batch, "add_request", self._failing("adding"))
        self._wrap(self.runner, "_update_states", self._failing("noting"))
        self._wrap(self.runner, "propose_draft_token_ids", self._failing("drafts"))
        self._wrap(self.runner, "_execute_mm_encoder", self._failing("encoder"))
        self._wrap(self.scheduler, "_preempt_request", self._counted)

    def begin(self, chosen: Chosen) -> None:
        """A run without a history of rescues."""
        self.steps = self.raised = self.preempted = 0
        self.chosen = chosen
        self.scheduler._brim_retry = StepRetry(self.scheduler._brim_retry.policy)

    def left(self) -> dict[str, int]:
        """What a run must not leave behind; the null block is always taken."""
        scheduler = self.scheduler
        pool = scheduler.kv_cache_manager.block_pool
        return {
            "running": len(scheduler.running),
            "waiting": scheduler.get_request_counts()[1],
            "requests": len(scheduler.requests),
            "blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "in_flight": scheduler._brim_undo.in_flight,
            "encoder": len(getattr(scheduler.encoder_cache_manager, "request_cached_ids", ())),
        }

    def _wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        real = getattr(owner, name)
        setattr(owner, name, lambda *given, **named: wrapper(real, *given, **named))

    def _counted(self, real: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.preempted += 1
        return real(*given, **named)

    def _noted(self, real: Callable[..., Any], step: Any, *given: Any, **named: Any) -> Any:
        if step.total_num_scheduled_tokens:
            self.steps += 1
        self._step = step
        return real(step, *given, **named)

    def _failing(self, place: str) -> Callable[..., Any]:
        import torch

        def call(real: Callable[..., Any], *given: Any, **named: Any) -> Any:
            if self._step.total_num_scheduled_tokens and self.chosen(self.steps, self._step, place):
                self.raised += 1
                raise torch.OutOfMemoryError("injected: CUDA out of memory. Tried to allocate 2.00 GiB.")
            return real(*given, **named)

        return call


def never(*_: Any) -> bool:
    """No step."""
    return False


def once(number: int, where: str) -> Chosen:
    """The first time that this step, or one after it, comes to this place."""
    done: list[int] = []

    def chosen(step: int, _: Any, place: str) -> bool:
        if done or step < number or place != where:
            return False
        done.append(step)
        return True

    return chosen


def always_with(position: int) -> Chosen:
    """Every step in which the request with this number runs past its first tokens."""

    def chosen(_: int, step: Any, place: str) -> bool:
        wanted = [name for name in step.num_scheduled_tokens if name.split("-")[0] == str(position)]
        return place == "forward" and bool(wanted)

    return chosen


def larger_than(tokens: int) -> Chosen:
    """Every step with more tokens than this, as on a device with too little memory for it."""
    return lambda _, step, place: place == "forward" and step.total_num_scheduled_tokens > tokens
