"""What is run after a failed step, for an engine that is not driven: asked for bounds, told later what came of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from brim.guard.rescue import RescuePolicy
from brim.records.rescue import LaunchBounds, RequestProgress, Work
from brim.vllm.rescue.retry import StepRetry

USUAL, LEAST, BLOCK = 128, 4, 16
Fails = Callable[[dict[str, int]], bool]


@dataclass
class Planner:
    """Requests of so many tokens, planned in order; a failure costs each of them the block that it was in."""

    lengths: dict[str, int]
    computed: dict[str, int] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    ended: dict[str, str] = field(default_factory=dict)

    def progress(self, names: Collection[object]) -> tuple[RequestProgress, ...]:
        return tuple(
            RequestProgress(name, self.computed.get(name, 0), self.lengths[name], running=name not in self.waiting)
            for name in self.left
            if name in names
        )

    @property
    def left(self) -> list[str]:
        return [
            name for name in self.lengths if name not in self.ended and self.computed.get(name, 0) < self.lengths[name]
        ]

    def planned(self, bounds: LaunchBounds) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in self.left:
            room = bounds.tokens - sum(found.values())
            if room > 0 and (bounds.only is None or name in bounds.only):
                found[name] = min(room, self.lengths[name] - self.computed.get(name, 0))
        return found

    def run(self, retry: StepRetry, fails: Fails, most_steps: int = 5000) -> int:
        """Steps until nothing is left."""
        for number in range(most_steps):
            if not self.left:
                return number
            step = self.planned(retry.bounds(self.progress))
            if fails(step):
                self._fail(retry, step)
                continue
            for name, tokens in step.items():
                self.computed[name] = self.computed.get(name, 0) + tokens
                self.waiting.discard(name)
            retry.ran(self.progress)
        raise AssertionError(f"{self.left} are left after {most_steps} steps")

    def _fail(self, retry: StepRetry, step: dict[str, int]) -> None:
        work = tuple(Work(name, tokens, self.computed.get(name, 0)) for name, tokens in step.items())
        self.waiting = set(self.left)
        self.computed = {name: count // BLOCK * BLOCK for name, count in self.computed.items()}
        ending = retry.failed(work, self.progress, "refused")
        if ending is not None:
            self.ended[str(ending.request)] = ending.words


def made() -> StepRetry:
    return StepRetry(RescuePolicy(usual_tokens=USUAL, least_tokens=LEAST))


def test_a_failure_is_run_again_in_halves_and_counted() -> None:
    retry, engine = made(), Planner({"a": 40, "b": 40})
    faults = [True]
    engine.run(retry, lambda step: bool(step) and faults.pop() if faults else False)
    assert engine.ended == {}
    assert (retry.condition.rescues, retry.condition.step_tokens, retry.under_way) == (1, USUAL, False)


def test_a_request_that_never_fits_is_the_only_one_to_end() -> None:
    retry, engine = made(), Planner({"a": 40, "b": 40, "c": 40})
    engine.run(retry, lambda step: "b" in step)
    assert list(engine.ended) == ["b"]
    assert engine.ended["b"] == "16 of the 40 tokens of this request do not fit in a step even alone: refused"
    assert (retry.condition.rescues, retry.condition.ended_requests) == (1, 1)


def test_requests_that_are_gone_leave_nothing_to_run_again() -> None:
    retry, engine = made(), Planner({"a": 40})
    assert retry.failed((), engine.progress, "refused") is None
    assert retry.under_way
    assert retry.bounds(engine.progress) == LaunchBounds(USUAL, calm=False)
    assert (retry.under_way, retry.condition.rescues) == (False, 1)


def test_parts_that_cannot_be_planned_end_the_largest_request_at_last() -> None:
    retry, engine = made(), Planner({"a": 40, "b": 90})
    work = (Work("a", 38), Work("b", 90))
    ends = []
    for _ in range(8):
        ends.append(retry.failed(work, engine.progress, "refused"))
        while retry.bounds(engine.progress).only is not None:
            retry.nothing_ran()
    ended = [one for one in ends if one is not None]
    assert ends[0] is None
    assert {one.request for one in ended} == {"b"}


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    fits=st.integers(16, USUAL),
    victims=st.sets(st.integers(0, 7), max_size=3),
)
def test_what_fits_is_answered_and_what_does_not_ends(lengths: list[int], fits: int, victims: set[int]) -> None:
    engine = Planner({str(index): length for index, length in enumerate(lengths)})
    bad = {str(index) for index in victims} & set(engine.lengths)
    engine.run(made(), lambda step: sum(step.values()) > fits or bool(bad & set(step)))
    assert set(engine.ended) == bad
