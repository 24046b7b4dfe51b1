"""vLLM's scheduler with Brim's rescue in it.

vLLM's core asks for a step (`schedule`), has it run, and returns with the result (`update_from_output`), with one more
step in between where scheduling is asynchronous. A step that failed, and those that were planned before that was known,
bring nothing. Their requests are put back (`undo`), and what runs next is decided in `retry`: the requests of the
failed step in smaller and smaller parts, one step at a time. Then all are served as ever, for a while in smaller steps
if it happens again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from brim.guard.rescue import RescuePolicy
from brim.records.rescue import LaunchBounds
from brim.vllm.rescue.gauges import RescueFile
from brim.vllm.rescue.marks import FailedStep, epoch_of, mark
from brim.vllm.rescue.refused import rescue_refusal
from brim.vllm.rescue.retry import EndedRequest, StepRetry
from brim.vllm.rescue.undo import Undo

_QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")  # of requests that do not run; versions have two of them


@cache
def scheduler_class() -> type[Any]:
    """Brim's scheduler over vLLM's asynchronous one; where that is switched off, an instance is over the other."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    members = {"__module__": "brim.vllm"}
    in_turn = type("BrimSynchronousScheduler", (RescuingScheduler, Scheduler), members)

    def new(cls: type[Any], vllm_config: Any, *arguments: Any, **named: Any) -> Any:
        asynchronous = vllm_config.scheduler_config.async_scheduling
        return object.__new__(cls) if asynchronous else in_turn(vllm_config, *arguments, **named)

    return type("BrimScheduler", (RescuingScheduler, AsyncScheduler), {**members, "__new__": new})


class RescuingScheduler:
    """What Brim's scheduler has in addition to vLLM's; stands before it among the bases of the scheduler class."""

    vllm_config: Any
    running: list[Any]
    max_num_scheduled_tokens: int

    def __init__(self, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(vllm_config, *arguments, **named)  # type: ignore[call-arg]
        refused = rescue_refusal(vllm_config, os.environ)
        self._brim_retry = None if refused else StepRetry(self._brim_policy())
        self._brim_undo = Undo(self)
        self._brim_epoch = 0  # failures so far
        self._brim_without_drafts = False  # the last step that was read has failed
        self._brim_file = RescueFile.of(vllm_config)
        if self._brim_retry is not None:
            self._brim_file.write(self._brim_retry.condition)
        self._brim_say(f"no rescue: {refused}" if refused else "steps that run out of memory are run again in parts")

    # -- what vLLM's core calls ----------------------------------------------------------------------------------

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        retry = self._brim_retry
        if retry is None:
            return super().schedule(*arguments, **named)  # type: ignore[misc]
        waits = retry.under_way and self._brim_undo.in_flight > 0  # parts run one at a time
        bounds = LaunchBounds(0) if waits else retry.bounds(self._brim_undo.progress)
        with self._brim_within(bounds):
            scheduled = super().schedule(*arguments, **named)  # type: ignore[misc]
        mark(scheduled, self._brim_epoch)
        if scheduled.total_num_scheduled_tokens:
            self._brim_undo.launched()
        elif bounds.only is not None:
            retry.nothing_ran()
        return scheduled

    def update_from_output(self, scheduled: Any, output: Any) -> Any:
        retry = self._brim_retry
        if retry is None:
            return super().update_from_output(scheduled, output)  # type: ignore[misc]
        if self._brim_is_stale(scheduled):
            self._brim_undo.drained(scheduled)
            return self._brim_without_results(scheduled)
        self._brim_without_drafts = isinstance(output, FailedStep)
        if isinstance(output, FailedStep):
            return self._brim_rescued(retry, scheduled, output)
        found = super().update_from_output(scheduled, output)  # type: ignore[misc]
        if scheduled.total_num_scheduled_tokens:
            self._brim_undo.read()
            retry.ran(self._brim_undo.progress)
            self._brim_file.write(retry.condition)
        return found

    def get_grammar_bitmask(self, scheduled: Any) -> Any:
        return None if self._brim_is_stale(scheduled) else super().get_grammar_bitmask(scheduled)  # type: ignore[misc]

    def update_draft_token_ids(self, drafts: Any) -> None:
        if not self._brim_without_drafts:
            super().update_draft_token_ids(drafts)  # type: ignore[misc]

    def update_draft_token_ids_in_output(self, drafts: Any, scheduled: Any) -> None:
        if not self._brim_is_stale(scheduled):
            super().update_draft_token_ids_in_output(drafts, scheduled)  # type: ignore[misc]

    def shutdown(self) -> None:
        self._brim_file.remove()
        super().shutdown()  # type: ignore[misc]

    # -- what vLLM's scheduler calls itself ----------------------------------------------------------------------

    def _free_request_blocks(self, request: Any) -> None:
        if self._brim_retry is not None:
            self._brim_undo.freed(request)
        super()._free_request_blocks(request)  # type: ignore[misc]

    # -- a rescue ------------------------------------------------------------------------------------------------

    def _brim_rescued(self, retry: StepRetry, scheduled: Any, output: FailedStep) -> Any:
        from vllm.v1.engine import EngineCoreOutputs

        self._brim_warn(f"out of memory in a step of {scheduled.total_num_scheduled_tokens} tokens: {output.reason}")
        failed = self._brim_undo.work(scheduled)
        self._brim_undo.step(scheduled, output.unknown)
        self._brim_epoch += 1
        ending = retry.failed(failed, self._brim_undo.progress, output.reason)
        ended = [] if ending is None else self._brim_ended(ending)
        retry.settle(self._brim_undo.progress)
        self._brim_file.write(retry.condition)
        found = self._brim_without_results(scheduled)
        for client, one in ended:
            found.setdefault(client, EngineCoreOutputs()).outputs.append(one)
        return found

    def _brim_ended(self, ending: EndedRequest) -> list[tuple[int, Any]]:
        """The last output of a request that cannot run, with its client."""
        from vllm.v1.engine import EngineCoreOutput
        from vllm.v1.request import RequestStatus

        self._brim_warn(f"request {ending.request} ends: {ending.words}")
        ended = self.finish_requests({ending.request}, RequestStatus.FINISHED_ERROR)  # type: ignore[attr-defined]
        return [
            (
                one.client_index,
                EngineCoreOutput(
                    request_id=one.request_id,
                    new_token_ids=[],
                    finish_reason=one.get_finished_reason(),
                    stop_reason=ending.words,
                    events=one.take_events(),
                    trace_headers=one.trace_headers,
                ),
            )
            for one in ended
        ]

    def _brim_without_results(self, scheduled: Any) -> Any:
        """What vLLM returns for a step without requests: statistics, and who has finished."""
        from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

        empty = replace(scheduled, num_scheduled_tokens={}, total_num_scheduled_tokens=0)
        return super().update_from_output(empty, EMPTY_MODEL_RUNNER_OUTPUT)  # type: ignore[misc]

    def _brim_is_stale(self, scheduled: Any) -> bool:
        return self._brim_retry is not None and (epoch_of(scheduled) or 0) < self._brim_epoch

    # -- bounds --------------------------------------------------------------------------------------------------

    @contextmanager
    def _brim_within(self, bounds: LaunchBounds) -> Iterator[None]:
        """While a step is planned: so many tokens, and no request that may not be in it."""
        usual, self.max_num_scheduled_tokens = self.max_num_scheduled_tokens, bounds.tokens
        try:
            if bounds.only is None:
                yield
            else:
                with self._brim_hidden(bounds.only):
                    yield
        finally:
            self.max_num_scheduled_tokens = usual

    @contextmanager
    def _brim_hidden(self, only: frozenset[Any]) -> Iterator[None]:
        """All requests but these are out of vLLM's sight. All of them ran at once before, so they are not too many."""
        from vllm.v1.core.sched.request_queue import create_request_queue

        running = [one for one in self.running if one.request_id not in only]
        queues = {name: getattr(self, name) for name in _QUEUES if hasattr(self, name)}
        self.running = [one for one in self.running if one.request_id in only]
        for name, queue in queues.items():
            seen = create_request_queue(self.policy)  # type: ignore[attr-defined]
            for one in [one for one in queue if one.request_id in only]:
                queue.remove_request(one)
                seen.add_request(one)
            setattr(self, name, seen)
        try:
            yield
        finally:
            self.running = running + self.running
            for name, queue in queues.items():
                for one in reversed(list(getattr(self, name))):
                    queue.prepend_request(one)
                setattr(self, name, queue)

    def _brim_policy(self) -> RescuePolicy:
        usual = self.max_num_scheduled_tokens
        scheduler = self.vllm_config.scheduler_config
        return RescuePolicy(usual_tokens=usual, least_tokens=min(usual, scheduler.max_num_seqs))

    def _brim_say(self, words: str) -> None:
        from vllm.logger import init_logger

        init_logger("vllm.brim").info("brim: %s", words)

    def _brim_warn(self, words: str) -> None:
        from vllm.logger import init_logger

        init_logger("vllm.brim").warning("brim: %s", words)
