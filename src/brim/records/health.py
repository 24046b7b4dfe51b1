"""How a serving engine is (`Health`): for operators, health checks and metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Status(StrEnum):
    """In one word."""

    READY = "ready"
    DEGRADED = "degraded"  # it serves, after an out-of-memory that is not long ago, or without its encoders
    ENDED = "ended"  # it serves no more


@dataclass(frozen=True, slots=True)
class Health:
    """An engine at one moment. Counts are since it was built."""

    status: Status
    reason: str  # why it is not ready; empty where it is
    rescues: int = 0  # steps that ran out of memory and were run again in parts
    ended_requests: int = 0  # that could not run alone
    rebuilds: int = 0  # of the KV pool, after an audit that failed
    step_tokens: int = 0  # the limit of a step now
    usual_step_tokens: int = 0
    canary_held: bool = True  # or there is none

    def also(self, problem: str) -> Health:
        """The same engine, with one more reason why it serves less than it should; none where there is no problem."""
        if not problem or self.status is Status.ENDED:
            return self
        return replace(self, status=Status.DEGRADED, reason="; ".join(filter(None, (self.reason, problem))))
