"""Ranks in lockstep: steps are compared by digest, tokens are sampled on rank 0 and broadcast."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from hashlib import blake2b

import torch
import torch.distributed as dist

from brim.engine.ranks.ranks import Ranks
from brim.engine.schedule.plan import StepPlan
from brim.errors import InvalidRequest


class InStep:
    """Keeps the ranks of an engine in lockstep; `Runner` calls it once before and once after each step.

    A rank that schedules another step than rank 0 is detected by a digest. On the CPU digests are compared before the
    step runs. On a GPU that would synchronise all ranks: there a digest is sent while its step is being launched, and
    compared when the next one is.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._at_once = ranks.device.type == "cpu"
        self._step = 0
        self._travelling: Callable[[], None] | None = None

    def check(self, plan: StepPlan) -> None:
        if self._travelling is not None:
            self._travelling()
        self._step += 1
        self._travelling = self._compare(plan_digest(plan), self._step)
        if self._at_once:
            self._travelling()
            self._travelling = None

    def tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._ranks.broadcast_tokens(tokens)

    def _compare(self, digest: int, step: int) -> Callable[[], None]:
        """Send a digest; calling the returned function waits for those of all ranks."""
        ranks = self._ranks
        letters = ranks.letters
        letters.digest[:] = digest, step
        work = dist.all_gather_into_tensor(
            letters.digests_sent, letters.digest_sent, group=ranks.host_group, async_op=True
        )

        def finish() -> None:
            work.wait()
            found = letters.digests.reshape(ranks.size, -1).tolist()
            others = [rank for rank, one in enumerate(found) if one != found[0]]
            if others:
                raise InvalidRequest(
                    f"tensor parallelism: ranks {others} scheduled a different step {step} than rank 0; give all ranks "
                    "the same requests and settings, in the same order"
                )

        return finish


def plan_digest(plan: StepPlan) -> int:
    """63 bits of everything that must be the same on all ranks in a step."""
    digest = blake2b(digest_size=8)
    rows = zip(plan.decodes, plan.slots, plan.lengths, strict=True)
    decodes = [(*sequence.request.key, sequence.request.seed, slot, length) for sequence, slot, length in rows]
    digest.update(repr((decodes, plan.drafts)).encode())
    for chunk in plan.chunks:
        request = chunk.sequence.request
        digest.update(repr((*request.key, request.seed, chunk.slot, chunk.start, chunk.length, chunk.draws)).encode())
        digest.update(array("q", chunk.sequence.tokens[chunk.start : chunk.start + chunk.length]).tobytes())
    return int.from_bytes(digest.digest()) >> 1
