"""vLLM's requests put back to what was accepted, after a step of theirs failed (`Undo`).

In: vLLM's scheduler, with a failed step read and maybe later ones in flight. Out: every running request preempted as
vLLM preempts for want of blocks, so that it is planned again from the tokens that were accepted; blocks that were
computed are found again in the prefix cache. vLLM hashes blocks into that cache when it plans to compute them: those
that no step has computed are dropped from it.

Where layers keep recurrent states, or parts of a block are hashed, the whole cache is dropped: the failed step may have
changed what a hash stands for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Any

from brim.records.rescue import RequestProgress, Work


class Undo:
    """For one scheduler; it is told what is launched and read, to know which blocks are computed."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._launched = self._read = 0  # steps
        self._freed: deque[tuple[int, frozenset[int]]] = deque()  # uncomputed blocks, and the last step they were in

    @property
    def in_flight(self) -> int:
        return self._launched - self._read

    def launched(self) -> None:
        self._launched += 1

    def read(self) -> None:
        self._read += 1
        while self._freed and self._freed[0][0] <= self._read:
            self._freed.popleft()

    def freed(self, request: Any) -> None:
        """A request gives its blocks back; what is in flight of it may fail after that, and they stay hashed."""
        if request.num_in_flight_tokens > 0:
            self._freed.append((self._launched, self._uncomputed(request)))

    def work(self, scheduled: Any) -> tuple[Work, ...]:
        """What a step was to compute of the requests that are still there."""
        requests = ((self._known(name), tokens) for name, tokens in scheduled.num_scheduled_tokens.items())
        return tuple(Work(one.request_id, tokens, _computed(one)) for one, tokens in requests if one is not None)

    def progress(self, names: Collection[Any]) -> tuple[RequestProgress, ...]:
        requests = [one for one in map(self._known, names) if one is not None]
        return tuple(
            RequestProgress(one.request_id, self._found(one), one.num_tokens, running=_runs(one)) for one in requests
        )

    def step(self, scheduled: Any, unknown: Collection[str]) -> None:
        """Put all requests back, those of later steps in flight too; no result of these may be used."""
        from vllm.v1.request import RequestStatus

        scheduler = self._scheduler
        now = time.monotonic()
        while scheduler.running:  # from the last one on: each is put before the others that wait
            scheduler._preempt_request(scheduler.running.pop(), now)
        for request in scheduler.requests.values():
            _nothing_in_flight(request)
        for name in unknown:
            request = self._known(name)
            if request is not None and request.status == RequestStatus.PREEMPTED:
                request.status = RequestStatus.WAITING  # the worker has to be told all of it
        self.drained(scheduled)
        scheduler.prev_step_scheduled_req_ids.clear()
        self._drop_uncomputed()
        scheduler.reset_encoder_cache()
        self._read = self._launched

    def drained(self, scheduled: Any) -> None:
        """What is in flight of requests, without a step whose result is not used."""
        for name, tokens in scheduled.num_scheduled_tokens.items():
            request = self._scheduler.requests.get(name)
            if request is not None:
                request.num_in_flight_tokens -= tokens
                if getattr(request, "num_stale_output_tokens", 0) > 0:
                    request.num_stale_output_tokens -= tokens

    def _known(self, name: Any) -> Any:
        request = self._scheduler.requests.get(name)
        return None if request is None or request.is_finished() else request

    def _found(self, request: Any) -> int:
        """Tokens that need not be computed: those of one that waits are looked up in the prefix cache."""
        if _runs(request) or request.num_computed_tokens:
            return _computed(request)
        return int(self._scheduler.kv_cache_manager.get_computed_blocks(request)[1])

    def _drop_uncomputed(self) -> None:
        manager = self._scheduler.kv_cache_manager
        if self._hashes_more_than_blocks():
            manager.evict_blocks(set(range(self._scheduler.kv_cache_config.num_blocks)))
        else:
            manager.evict_blocks({block for _, blocks in self._freed for block in blocks})
        self._freed.clear()

    def _hashes_more_than_blocks(self) -> bool:
        from vllm.v1.kv_cache_interface import MambaSpec

        scheduler = self._scheduler
        states = any(isinstance(group.kv_cache_spec, MambaSpec) for group in scheduler.kv_cache_config.kv_cache_groups)
        return states or getattr(scheduler.kv_cache_manager.coordinator, "enable_partial_hash_hits", False)

    def _uncomputed(self, request: Any) -> frozenset[int]:
        manager, computed = self._scheduler.kv_cache_manager, _computed(request)
        groups = zip(
            manager.get_blocks(request.request_id).blocks, manager.coordinator.single_type_managers, strict=True
        )
        return frozenset(
            block.block_id for blocks, of_type in groups for block in blocks[computed // of_type.block_size :]
        )


def _computed(request: Any) -> int:
    """Tokens whose computation has been read; vLLM counts those that it has planned."""
    return max(0, int(request.num_computed_tokens - request.num_in_flight_tokens))


def _runs(request: Any) -> bool:
    from vllm.v1.request import RequestStatus

    return bool(request.status == RequestStatus.RUNNING)


def _nothing_in_flight(request: Any) -> None:
    """Forget what outputs of steps in flight would have brought; versions count it under different names."""
    request.num_output_placeholders = 0
    if request.spec_token_ids:
        request.spec_token_ids = []
    if hasattr(request, "async_tokens_to_discard"):
        request.async_tokens_to_discard = 0
    if hasattr(request, "drop_stale_output"):
        request.drop_stale_output = True
