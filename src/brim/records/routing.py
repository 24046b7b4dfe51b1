"""What a replica tells a router (`ReplicaStatistics`), what a request asks for (`RouteRequest`), and where it goes.

Digests of blocks are cut to 64 bits here, as integers: `short_digest`. Two that are equal by chance cost a request the
computation of a prefix, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from brim.records.health import Status

DIGEST_BYTES = 8
NO_REPLICA: frozenset[str] = frozenset()


def short_digest(digest: bytes) -> int:
    """A block's digest as routers compare it."""
    return int.from_bytes(digest[:DIGEST_BYTES], "little")


def short_digests(digests: Sequence[bytes]) -> tuple[int, ...]:
    return tuple([short_digest(one) for one in digests])


@dataclass(frozen=True, slots=True)
class PrefixSummary:
    """The digests of a pool, as many as are worth sending: all whose lowest `skipped_bits` bits are 0.

    Every replica keeps the same ones of a conversation, so a request knows which of its own digests can be found.
    """

    digests: bytes = b""  # 8 bytes each, in any order
    skipped_bits: int = 0  # 0: all that there are

    @property
    def count(self) -> int:
        return len(self.digests) // DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is free at a moment to come, as far as the guard foresees the ends of what runs."""

    seconds: float  # from when the statistics were taken
    blocks: int
    slots: int


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """A replica at one moment."""

    number: int  # grows with every report of a replica
    status: Status
    block_size: int  # tokens
    blocks: int  # of the pool
    free_blocks: int  # that can be handed out; cached ones too
    unused_blocks: int  # of these, those whose content nobody knows
    slots: int  # answers that can run at once
    running: int
    waiting: int
    waiting_blocks: int  # that those who wait will hold
    inside: int  # answers that were let in, running and waiting ones too
    places: int  # answers that may be inside
    prefill_tokens_per_second: float  # the most that was measured; 0: it has computed nothing yet
    step_seconds: float  # the mean of the latest steps; 0: none was measured
    forecast: tuple[Forecast, ...]  # in the order of time; the first is now
    summary: PrefixSummary = PrefixSummary()
    draining: bool = False

    def when_idle(self) -> ReplicaStatistics:
        """Of a replica of the same kind that has done nothing yet."""
        return replace(
            self,
            number=0,
            status=Status.READY,
            free_blocks=self.blocks,
            unused_blocks=self.blocks,
            running=0,
            waiting=0,
            waiting_blocks=0,
            inside=0,
            prefill_tokens_per_second=0.0,
            step_seconds=0.0,
            forecast=(Forecast(0.0, self.blocks, self.slots),),
            summary=PrefixSummary(),
            draining=False,
        )

    def to_wire(self) -> dict[str, Any]:
        """Plain values, as they cross between processes."""
        found = asdict(self)
        found["status"] = str(self.status)
        found["forecast"] = [(one.seconds, one.blocks, one.slots) for one in self.forecast]
        found["summary"] = (self.summary.digests, self.summary.skipped_bits)
        return found

    @classmethod
    def from_wire(cls, found: Mapping[str, Any]) -> ReplicaStatistics:
        return cls(
            **{
                **found,
                "status": Status(found["status"]),
                "forecast": tuple(Forecast(*one) for one in found["forecast"]),
                "summary": PrefixSummary(*found["summary"]),
            }
        )


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """A request that is to be sent to one of the replicas."""

    digests: tuple[int, ...] = ()  # of the full blocks of its prompt, from the first on
    tokens: int = 0  # of its prompt
    blocks: int = 1  # that it will hold in the end
    answers: int = 1
    patience_seconds: float = 60.0  # for it to start
    excluded: frozenset[str] = NO_REPLICA  # replicas that have failed it


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes: the best replica first."""

    replicas: tuple[str, ...]
    prefix_blocks: int  # that the first of them holds already, as far as is known
    wait_seconds: float  # until it starts there


@dataclass(frozen=True, slots=True)
class RouteRefusal:
    """No replica can start it in time."""

    retry_after_seconds: int
    reason: str
