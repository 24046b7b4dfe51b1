"""The policy of rescues: who runs, who ends, and how the limit of a step falls and rises."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from brim.guard.rescue import (
    CHUNK_FLOOR_TOKENS,
    DETOURS,
    LAST_TRIES,
    Condition,
    RequestKey,
    RescuePolicy,
    RetryPart,
    Work,
    after_rebuild,
    after_rescue,
    after_step,
    health,
    smaller_parts,
)
from brim.records.health import Health, Status


@dataclass
class Device:
    """Runs a step if it is small enough, by its tokens and those of each request; some tokens cannot be divided."""

    room: int
    tokens: dict[RequestKey, int]
    indivisible: set[RequestKey] = field(default_factory=set)
    steps: int = 0

    def planned(self, part: RetryPart) -> tuple[Work, ...]:
        """Whole requests as long as there are tokens left, as a scheduler plans them."""
        left, work = part.tokens, []
        for key in part.requests:
            taken = self.tokens[key] if key in self.indivisible else min(left, self.tokens[key])
            if taken:
                work.append(Work(key, taken))
                left = max(0, left - taken)
        return tuple(work)

    def runs(self, work: tuple[Work, ...]) -> bool:
        self.steps += 1
        return sum(one.tokens for one in work) <= self.room


def rescue(device: Device) -> tuple[list[RequestKey], list[RequestKey], list[int]]:
    """Who ran, who ended, and the tokens of all failed steps from a first one with everybody on."""
    first = tuple(Work(key, tokens) for key, tokens in device.tokens.items())
    parts = deque(smaller_parts(first))
    ran: list[RequestKey] = []
    ended: list[RequestKey] = []
    failed = [sum(one.tokens for one in first)]
    while parts:
        part = parts.popleft()
        work = device.planned(part)
        if device.runs(work):
            ran += part.requests
            continue
        smaller = smaller_parts(work, part)
        assert {key for one in smaller for key in one.requests} <= set(part.requests)
        assert sum(one.tokens for one in smaller) <= max(part.tokens, sum(one.tokens for one in work))
        failed.append(sum(one.tokens for one in work))
        ended += [] if smaller else part.requests
        parts.extendleft(reversed(smaller))
    return ran, ended, failed


devices = st.builds(
    lambda room, tokens, whole: Device(
        room,
        {(str(number), 0): count for number, count in enumerate(tokens)},
        {(str(number), 0) for number in whole},
    ),
    st.integers(0, 600),
    st.lists(st.one_of(st.just(1), st.integers(1, 500)), min_size=1, max_size=40),
    st.sets(st.integers(0, 39)),
)


@given(devices)
@settings(max_examples=300)
def test_whoever_can_run_alone_runs_and_nobody_else_ends(device: Device) -> None:
    ran, ended, failed = rescue(device)
    assert sorted(ran + ended) == sorted(device.tokens)  # each once
    for key, tokens in device.tokens.items():
        least = tokens if key in device.indivisible else min(tokens, CHUNK_FLOOR_TOKENS)
        assert (key in ran) == (least <= device.room)
    assert all(tokens <= failed[0] for tokens in failed)
    halvings = max(device.tokens.values()).bit_length()
    assert device.steps <= len(device.tokens) * (halvings + 5)


def test_a_heavy_request_is_alone_after_one_failure() -> None:
    decodes = tuple(Work((str(number), 0), 1) for number in range(100))
    heavy = Work(("long", 0), 2000)
    assert smaller_parts((*decodes, heavy)) == (
        RetryPart(tuple(one.request for one in decodes), 100),
        RetryPart((heavy.request,), 2000),
    )


def test_alone_it_gets_fewer_tokens_then_a_few_last_tries() -> None:
    key = ("a", 0)
    part: RetryPart | None = None
    seen = []
    work = (Work(key, 40),)
    while True:
        parts = smaller_parts(work, part)
        if not parts:
            break
        (part,) = parts
        seen.append((part.tokens, part.tries_left))
        work = (Work(key, part.tokens),)
    assert seen == [(20, None), (16, None), (16, 3), (16, 2), (16, 1)]


def test_what_cannot_be_divided_is_tried_as_often() -> None:
    image = (Work(("image", 0), 300),)
    (first,) = smaller_parts(image)
    assert first == RetryPart((("image", 0),), 150)
    (second,) = smaller_parts(image, first)  # it took 300 all the same
    assert second == RetryPart((("image", 0),), 300, tries_left=3)
    (third,) = smaller_parts(image, second)
    (fourth,) = smaller_parts(image, third)
    assert fourth.tries_left == 1
    assert smaller_parts(image, fourth) == ()


def test_a_failure_on_the_way_back_takes_no_try_unless_it_is_in_the_same_place_again() -> None:
    key = ("a", 0)
    (part,) = smaller_parts((Work(key, 100, start=300),))
    assert part == RetryPart((key,), 50, start=300)
    (part,) = smaller_parts((Work(key, 300, start=0, reached=300),), part)
    assert part == RetryPart((key,), 50, start=300, failed_at=0, detours_left=15)
    (part,) = smaller_parts((Work(key, 100, start=200, reached=300),), part)
    assert part == RetryPart((key,), 50, start=300, failed_at=200, detours_left=14)
    (part,) = smaller_parts((Work(key, 100, start=200, reached=300),), part)
    assert part == RetryPart((key,), 50, start=300, way_tokens=50, failed_at=200, detours_left=14)
    (part,) = smaller_parts((Work(key, 50, start=300, reached=300),), part)
    assert part == RetryPart((key,), 25, start=300, way_tokens=50, failed_at=200, detours_left=14)


def test_getting_further_restores_all_tries() -> None:
    key = ("a", 0)
    tired = RetryPart((key,), 16, tries_left=1, start=300, way_tokens=16, failed_at=200, detours_left=0)
    assert smaller_parts((Work(key, 16, start=300, reached=300),), tired) == ()
    assert smaller_parts((Work(key, 16, start=301, reached=300),), tired) == (RetryPart((key,), 16, 3, start=301),)


@given(
    tokens=st.integers(1, 400),
    usual=st.integers(1, 300),
    faults=st.lists(st.booleans(), max_size=200),
    room=st.integers(1, 400),
    passes=st.booleans(),
)
@settings(max_examples=300)
def test_a_request_that_is_set_back_fails_as_often_as_it_gets_further(
    tokens: int, usual: int, faults: list[bool], room: int, passes: bool
) -> None:
    """Alone, from its first token after each failure. After these faults it passes, or fails for good after `room`."""
    key, computed, furthest = ("a", 0), 0, 0
    part: RetryPart | None = None
    failures = raises = 0
    chance = iter(faults)
    while computed < tokens:
        limit = usual if part is None else _step_tokens(part, computed, usual)
        step = min(limit, tokens - computed)
        if not next(chance, not passes and computed + step > room):
            computed += step
            continue
        failures += 1
        smaller = smaller_parts((Work(key, step, computed, 0 if part is None else furthest),), part)
        raises += computed > furthest
        furthest, computed = max(furthest, computed), 0
        if not smaller:
            break
        (part,) = smaller
    halvings = usual.bit_length()
    assert raises <= tokens
    assert failures <= (raises + 1) * (DETOURS + 2 * halvings + LAST_TRIES + 2)
    if computed < tokens:
        assert failures > LAST_TRIES
    assert (computed == tokens) or faults or (not passes and room < tokens)


def _step_tokens(part: RetryPart, computed: int, usual: int) -> int:
    if computed < part.start:
        return min(part.way_tokens or usual, usual, part.start - computed)
    return min(usual, part.tokens)


def test_the_last_of_a_part_of_several_requests_is_given_fewer_tokens_first() -> None:
    several = RetryPart((("a", 0), ("b", 0)), 2)
    assert smaller_parts((Work(("b", 0), 500, start=10),), several) == (RetryPart((("b", 0),), 250, start=10),)


POLICY = RescuePolicy(usual_tokens=1024, least_tokens=100, window_steps=10, lowered_by=2, calm_steps=20)


def test_one_rescue_lowers_nothing_and_is_forgotten_after_a_while() -> None:
    one = after_rescue(POLICY, Condition(1024), step=5, ended_requests=1)
    assert health(POLICY, one, canary_held=True) == Health(
        Status.DEGRADED,
        "out of memory once within 10 steps, and fewer than 20 steps since",
        rescues=1,
        ended_requests=1,
        step_tokens=1024,
        usual_step_tokens=1024,
    )
    assert after_step(POLICY, one, 24) is one
    calm = after_step(POLICY, one, 25)
    assert health(POLICY, calm, canary_held=True) == Health(
        Status.READY, "", rescues=1, ended_requests=1, step_tokens=1024, usual_step_tokens=1024
    )


def test_repeated_rescues_lower_the_limit_to_a_floor_and_calm_restores_it_in_steps() -> None:
    condition, limits = Condition(1024), []
    for step in (1, 4, 8, 9, 12, 14):
        condition = after_rescue(POLICY, condition, step)
        limits.append(condition.step_tokens)
    assert limits == [1024, 512, 256, 128, 100, 100]
    assert "steps are limited to 100 tokens instead of 1024" in health(POLICY, condition, True).reason
    raised = []
    for step in range(15, 140):
        condition = after_step(POLICY, condition, step)
        raised.append(condition.step_tokens)
    assert sorted(set(raised)) == [100, 200, 400, 800, 1024]
    assert raised == sorted(raised)
    assert health(POLICY, condition, True).status is Status.READY


def test_rescues_far_apart_lower_nothing() -> None:
    condition = Condition(1024)
    for step in range(0, 100, 10):
        condition = after_rescue(POLICY, condition, step)
    assert condition.step_tokens == 1024
    assert condition.rescues == 10


def test_health_tells_of_a_rebuilt_pool_and_a_canary_that_is_not_held() -> None:
    rebuilt = after_rebuild(after_rescue(POLICY, Condition(1024), 1), "block 3 has no holder")
    told = health(POLICY, rebuilt, canary_held=False)
    assert told.rebuilds == 1
    assert "the KV pool was rebuilt: block 3 has no holder; the canary is not held" in told.reason
    assert health(POLICY, Condition(1024), canary_held=False).status is Status.DEGRADED


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_the_limit_stays_within_its_bounds_and_comes_back(history: list[tuple[bool, int]]) -> None:
    condition, step = Condition(1024), 0
    for rescued, steps in history:
        step += steps
        before = condition
        condition = after_rescue(POLICY, before, step) if rescued else after_step(POLICY, before, step)
        assert 100 <= condition.step_tokens <= 1024
        assert condition.step_tokens <= before.step_tokens if rescued else condition.step_tokens >= before.step_tokens
    for _ in range(6):
        step += POLICY.calm_steps
        condition = after_step(POLICY, condition, step)
    assert health(POLICY, condition, canary_held=True).status is Status.READY
