"""The worker's side of a rescue: an out-of-memory in a step becomes a `FailedStep` (`StepGuard`).

In: steps that Brim's scheduler has marked, and vLLM's own calls that run them. Out: their results. After a failure,
steps that were planned before the scheduler knew of it are noted (their new and finished requests) and not run: their
inputs would be tokens that were never drawn.

The tensors of the failed step are dropped with the frames of its error (`brim.probes.translate`). The canary is the
allocator's since the fit ended, so there is nothing more to lend. What stays in the runner and would be wrong is put
back here; the requests themselves are put back by the scheduler, which preempts them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from brim.errors import OutOfMemory
from brim.probes.translate import translated
from brim.vllm.rescue.marks import FailedStep, epoch_of

_BEFORE_ANY = -1
_STALE = FailedStep("planned before a failure was known")


class StepGuard:
    """Of one worker; without marked steps it does nothing."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._failed_epoch = _BEFORE_ANY
        self._step: Any = None  # marked, and not sampled yet
        self._failed: FailedStep | None = None  # instead of the tokens of that step

    def execute(self, scheduled: Any, run: Callable[[Any], Any]) -> Any:
        """`execute_model`: what it returned, None where tokens are to be drawn, or a failure."""
        epoch = epoch_of(scheduled)
        self._step, self._failed = None, None
        if epoch is None:
            return run(scheduled)
        self._step = scheduled
        if epoch > self._failed_epoch:
            return self._guarded(lambda: run(scheduled))
        self._guarded(lambda: run(_only_noted(scheduled)))
        self._failed = self._failed or _STALE
        return self._failed

    def sample(self, run: Callable[[], Any]) -> Any:
        """`sample_tokens`; vLLM may ask for the tokens of a step that failed."""
        if self._failed is not None or self._step is None:
            found, self._failed = self._failed, None
            return run() if found is None else found
        with self._kept_draws():
            found = self._guarded(run)
        self._step, self._failed = None, None
        return found

    def _guarded(self, run: Callable[[], Any]) -> Any:
        try:
            with translated():
                return run()
        except OutOfMemory as error:
            reason = str(error)
        self._failed = self._forgotten(reason)
        return self._failed

    def _forgotten(self, reason: str) -> FailedStep:
        """Drop what the runner keeps of a step for the next one."""
        worker, runner, step = self._worker, self._worker.model_runner, self._step
        self._failed_epoch = epoch_of(step) or 0
        runner.execute_model_state = None
        worker.reset_encoder_cache()  # the scheduler counts what this step was to encode as cached, and resets too
        unknown: tuple[str, ...] = ()
        if not worker.use_v2_model_runner:  # the second keeps nothing of a request that is preempted
            runner.input_batch.prev_sampled_token_ids = runner.input_batch.prev_req_id_to_index = None
            unknown = tuple(new.req_id for new in step.scheduled_new_reqs if new.req_id not in runner.requests)
        gc.collect()
        return FailedStep(reason, unknown)

    @contextmanager
    def _kept_draws(self) -> Iterator[None]:
        """What drawing changes in the first runner: the states of seeds, and which prompts are still to be scored."""
        if self._worker.use_v2_model_runner:  # its draws depend on seed and position only
            yield
            return
        runner = self._worker.model_runner
        seeded = [(generator, generator.get_state()) for generator in runner.input_batch.generators.values()]
        scored = dict(runner.num_prompt_logprobs)
        yield
        if self._failed is not None:
            for generator, state in seeded:
                generator.set_state(state)
            runner.num_prompt_logprobs.update(scored)


def _only_noted(scheduled: Any) -> Any:
    """A step of which vLLM notes the new and finished requests, and computes nothing."""
    from vllm.v1.core.sched.output import CachedRequestData

    names = {new.req_id for new in scheduled.scheduled_new_reqs}
    return replace(
        scheduled,
        scheduled_cached_reqs=CachedRequestData.make_empty(),
        num_scheduled_tokens={name: count for name, count in scheduled.num_scheduled_tokens.items() if name in names},
        total_num_scheduled_tokens=0,
    )
