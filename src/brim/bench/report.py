"""What a run says: latencies, throughput, goodput, errors and memory, from the outcomes of its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from brim.bench.records import Ending, MemoryPoint, RequestOutcome

SHARES = (50, 90, 99)  # percentiles


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution of seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float

    def to_json(self) -> dict[str, float]:
        in_ms = {f"{name}_ms": round(getattr(self, name) * 1000, 3) for name in ("mean", "p50", "p90", "p99")}
        return {"count": self.count, **in_ms, "max_ms": round(self.most * 1000, 3)}


def latency(values: Iterable[float]) -> Latency | None:
    """None where there are no values. A percentile is the smallest value that so many are not above."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p99 = (ordered[-(-len(ordered) * share // 100) - 1] for share in SHARES)
    return Latency(len(ordered), sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


@dataclass(frozen=True, slots=True)
class Slo:
    """What an answer must keep to count as good, in seconds; None: it does not matter."""

    ttft: float | None = None  # time to the first token
    tpot: float | None = None  # time of a token after the first, on average over the answer
    e2e: float | None = None  # end to end

    @property
    def given(self) -> bool:
        return any(one is not None for one in (self.ttft, self.tpot, self.e2e))

    def met(self, outcome: RequestOutcome) -> bool:
        if outcome.ending is not Ending.ANSWERED or outcome.first_token_seconds is None:
            return False
        kept = (
            (outcome.first_token_seconds, self.ttft),
            (outcome.token_seconds or 0.0, self.tpot),
            (outcome.seconds, self.e2e),
        )
        return all(most is None or seconds <= most for seconds, most in kept)


@dataclass(frozen=True, slots=True)
class Report:
    """One run."""

    server: str
    model: str | None
    load: str  # in words
    seconds: float
    outcomes: tuple[RequestOutcome, ...]
    memory: tuple[MemoryPoint, ...]
    slo: Slo
    client_cpu_seconds: float

    def ended(self, ending: Ending) -> list[RequestOutcome]:
        return [one for one in self.outcomes if one.ending is ending]

    @property
    def answered(self) -> list[RequestOutcome]:
        return self.ended(Ending.ANSWERED)

    @property
    def answer_tokens(self) -> int:
        """All that were streamed, also in answers that did not end."""
        return sum(one.answer_tokens for one in self.outcomes)

    @property
    def tokens_per_second(self) -> float:
        return self.answer_tokens / self.seconds

    @property
    def good(self) -> int | None:
        return sum(self.slo.met(one) for one in self.outcomes) if self.slo.given else None

    @property
    def errors(self) -> dict[str, int]:
        """How often each kind, the most frequent first."""
        return dict(Counter(one.error for one in self.outcomes if one.error is not None).most_common())

    @property
    def ttft(self) -> Latency | None:
        return latency(one.first_token_seconds for one in self.outcomes if one.first_token_seconds is not None)

    @property
    def inter_token(self) -> Latency | None:
        return latency(chain.from_iterable(one.gaps for one in self.outcomes))

    @property
    def end_to_end(self) -> Latency | None:
        return latency(one.seconds for one in self.answered)

    def to_json(self) -> dict[str, Any]:
        """Stable keys; times in milliseconds but for the run's own."""
        good = self.good
        return {
            "server": self.server,
            "model": self.model,
            "load": self.load,
            "seconds": round(self.seconds, 3),
            "client_cpu_seconds": round(self.client_cpu_seconds, 3),
            "requests": {"sent": len(self.outcomes), **{str(one): len(self.ended(one)) for one in Ending}},
            "errors": self.errors,
            "prompt_tokens": sum(one.prompt_tokens for one in self.outcomes),
            "cached_tokens": sum(one.cached_tokens for one in self.outcomes),
            "completion_tokens": self.answer_tokens,
            "throughput": {
                "requests_per_second": round(len(self.answered) / self.seconds, 3),
                "completion_tokens_per_second": round(self.tokens_per_second, 1),
            },
            "ttft": _json(self.ttft),
            "inter_token": _json(self.inter_token),
            "end_to_end": _json(self.end_to_end),
            "slo": {f"{name}_ms": _ms(value) for name, value in asdict(self.slo).items()},
            "goodput": None
            if good is None
            else {"requests": good, "requests_per_second": round(good / self.seconds, 3)},
            "memory": _memory(self.memory),
        }


def _json(found: Latency | None) -> dict[str, float] | None:
    return None if found is None else found.to_json()


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _memory(points: Sequence[MemoryPoint]) -> dict[str, Any] | None:
    """The most that was held, and what happened between the first look and the last."""
    if not points:
        return None
    first, last = points[0], points[-1]
    used = [point.device_used_bytes for point in points if point.device_used_bytes is not None]
    return {
        "looks": len(points),
        "kv_blocks": last.kv_blocks,
        "kv_blocks_held_most": max(point.kv_held for point in points),
        "kv_blocks_held_at_end": last.kv_held,
        "running_most": max(point.running for point in points),
        "waiting_most": max(point.waiting for point in points),
        "preemptions": last.preemptions - first.preemptions,
        "rescues": last.rescues - first.rescues,
        "ended_by_memory": last.ended_by_memory - first.ended_by_memory,
        "device_used_bytes_first": used[0] if used else None,
        "device_used_bytes_last": used[-1] if used else None,
        "device_used_bytes_most": max(used) if used else None,
    }
