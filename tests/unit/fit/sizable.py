"""A minimal engine, and probes with neighbours: real tensors, counted and refused by a real budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from brim.probes.cpu import ROUNDING, CpuProbe
from brim.probes.translate import translated
from brim.records.fit import FitRequest
from brim.records.memory import MemoryReading, StressShape
from brim.units import KIB, round_up

PREFILL, DECODE = StressShape("prefill", 64, 4), StressShape("decode", 4, 4)
SHAPES = (PREFILL, DECODE)
Fault = BaseException | Callable[[], None]


def request(**changes: Any) -> FitRequest:
    return replace(FitRequest(probe_tokens=16, least_tokens=8, most_tokens=1 << 20, canary_bytes=8 * KIB), **changes)


class WatchedProbe(CpuProbe):
    """A budget that remembers the most that was ever live, and neighbours who take from it as they are told to.

    `neighbours` are bytes held by others, one for each reading; the last stay.
    """

    def __init__(self, budget_bytes: int, neighbours: Iterable[int] = (), fail_at: int | None = None) -> None:
        super().__init__(budget_bytes, fail_at=fail_at)
        self.device_bytes = budget_bytes
        self.most_live_bytes = 0
        self._neighbours = iter(neighbours)

    def reading(self) -> MemoryReading:
        self.budget_bytes = self.device_bytes - next(self._neighbours, self.device_bytes - self.budget_bytes)
        found = super().reading()
        self.most_live_bytes = max(self.most_live_bytes, found.peak_allocated_bytes)
        return replace(
            found,
            total_bytes=self.device_bytes,
            other_bytes=self.device_bytes - self.budget_bytes,
            process_bytes=found.reserved_bytes,
        )

    def reset_peak(self) -> None:
        self.most_live_bytes = max(self.most_live_bytes, super().reading().peak_allocated_bytes)
        super().reset_peak()

    @property
    def live_bytes(self) -> int:
        return CpuProbe.reading(self).allocated_bytes


@dataclass(frozen=True, slots=True)
class Event:
    """What an engine was told to do, and what was live when it was."""

    name: str  # build, teardown, or the stress's
    kv_tokens: int
    live_bytes: int


@dataclass
class HonestEngine:
    """A pool of so many bytes a token, buffers beside it, and stress that takes memory for a moment."""

    probe: WatchedProbe
    token_bytes: int = 512
    weights_bytes: int = 16 * KIB
    buffers_bytes: int = 4 * KIB
    activation_bytes: int = 32 * KIB
    growth_bytes: int = 0  # of the activation, for each KV token: what a small probe does not show
    leaks: tuple[int, ...] = ()  # bytes that stay behind, by teardown
    fragments: tuple[int, ...] = ()  # bytes that stay reserved and unused, by teardown
    faults: dict[tuple[str, int], Fault] = field(default_factory=dict)  # by event and how often it was seen
    log: list[Event] = field(default_factory=list)
    kv_tokens: int = 0
    leaked: list[Any] = field(default_factory=list)
    _held: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = torch.empty(self.weights_bytes, dtype=torch.uint8)
        self.probe.hold([self.weights])

    def price(self, kv_tokens: int) -> int:
        return round_up(kv_tokens * self.token_bytes, ROUNDING)

    def build(self, kv_tokens: int) -> None:
        assert not self._held, "built twice"
        self.kv_tokens = kv_tokens
        with self._event("build"):
            self._held.append(torch.empty(self.price(kv_tokens), dtype=torch.uint8))
            self._held.append(torch.empty(self.buffers_bytes, dtype=torch.uint8))

    def teardown(self) -> None:
        number = sum(event.name == "teardown" for event in self.log)
        with self._event("teardown"):
            self._held.clear()
            if number < len(self.leaks) and self.leaks[number]:
                self.leaked.append(torch.empty(self.leaks[number], dtype=torch.uint8))
            if number < len(self.fragments):
                self.probe.hold_unused(self.fragments[number])
        self.kv_tokens = 0

    def stress_shapes(self) -> tuple[StressShape, ...]:
        return SHAPES

    def stress(self, shape: StressShape) -> None:
        with self._event(shape.name):
            share = shape.tokens / PREFILL.tokens
            torch.empty(int(share * (self.activation_bytes + self.growth_bytes * self.kv_tokens)), dtype=torch.uint8)

    @contextmanager
    def _event(self, name: str) -> Iterator[None]:
        self.log.append(Event(name, self.kv_tokens, self.probe.live_bytes))
        fault = self.faults.get((name, sum(event.name == name for event in self.log)))
        with translated(), self.probe:
            if isinstance(fault, BaseException):
                raise fault
            if fault is not None:
                fault()
            yield

    @property
    def events(self) -> list[tuple[str, int]]:
        return [(event.name, event.kv_tokens) for event in self.log]

    def assert_proven(self, kv_tokens: int, canary_bytes: int) -> None:
        """The last thing that happened: a build of this size, every shape survived, the canary held meanwhile."""
        last = self.log[-1 - len(SHAPES) :]
        assert [(event.name, event.kv_tokens) for event in last] == [
            ("build", kv_tokens),
            *((shape.name, kv_tokens) for shape in SHAPES),
        ]
        held = (self.weights_bytes, self.price(kv_tokens), self.buffers_bytes, canary_bytes)
        assert {event.live_bytes for event in last[1:]} == {sum(round_up(size, ROUNDING) for size in held)}
