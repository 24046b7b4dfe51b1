"""What to do after an out-of-memory: which smaller steps to run instead, and how large later steps may be.

In: what the failed step was to compute (`Work`), and the history of rescues (`Condition`). Out: the `RetryPart`s to run
in its place, and the next condition. A failed step is run again in halves, down to one request. A request alone is
given fewer tokens at a time, down to a floor; a few tries there (another process may hold the memory for a moment
only), and it ends.

A request may have been set back by the failure (recurrent states), and fail again on its way to where it stood. Such
failures have a number of their own, and tries are counted where it stood; getting further restores both. So it ends:
every failure takes one of these, or halves the tokens of a step, or comes after a place that was not reached before,
and there are as many of those as the request has tokens.

Time is counted in steps, so that a recorded run replays to the same decisions, on every rank. Knows nothing of memory:
the driver (`brim.guard.driver`) releases the canary before it runs a part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from brim.records.health import Health, Status
from brim.records.rescue import RequestKey, Work

CHUNK_FLOOR_TOKENS = 16  # a request that cannot compute so many tokens in a step cannot run
LAST_TRIES = 3  # of a request alone, with the fewest tokens
DETOURS = 16  # failures of a request on its way back to where it stood, each in another place than the one before


@dataclass(frozen=True, slots=True)
class RetryPart:
    """A step in place of a failed one: some of its requests, and at most so many tokens."""

    requests: tuple[RequestKey, ...]
    tokens: int
    tries_left: int | None = None  # of a request alone with its fewest tokens, this one included
    start: int = 0  # of a request alone: the furthest place where it failed. Up to there it needs no smaller steps
    way_tokens: int | None = None  # most tokens of a step up to there; None: the usual number
    failed_at: int | None = None  # where it failed last, up to there
    detours_left: int = DETOURS


def smaller_parts(
    failed: tuple[Work, ...], part: RetryPart | None = None, floor_tokens: int = CHUNK_FLOOR_TOKENS
) -> tuple[RetryPart, ...]:
    """What to run in place of a step that failed; nothing: its only request cannot run, and ends.

    `part` is what the step was a part of already, None for a step of ordinary serving.
    """
    assert failed, "a step without requests cannot fail"
    if len(failed) > 1:
        return tuple(_together(half) for half in _halves(failed))
    (alone,) = failed
    before = part if part is not None and len(part.requests) == 1 else None
    if alone.start < alone.reached:
        return _on_the_way_back(alone, before or _together(failed), floor_tokens)
    return _where_it_stood(alone, before, floor_tokens)


def _on_the_way_back(alone: Work, before: RetryPart, floor_tokens: int) -> tuple[RetryPart, ...]:
    """It has been past this place: that it failed here now says little about it, unless it does so twice in a row."""
    if before.failed_at != alone.start and before.detours_left:
        return (replace(before, failed_at=alone.start, detours_left=before.detours_left - 1),)
    fewer = max(floor_tokens, alone.tokens // 2)
    indivisible = before.way_tokens is not None and alone.tokens > before.way_tokens
    if fewer < alone.tokens and not indivisible:
        return (replace(before, failed_at=alone.start, way_tokens=fewer),)
    return _one_try_less(before, alone)


def _where_it_stood(alone: Work, before: RetryPart | None, floor_tokens: int) -> tuple[RetryPart, ...]:
    """At the furthest place that it has come to. One that has got further since its last failure has all its tries."""
    fewer = max(floor_tokens, alone.tokens // 2)
    indivisible = before is not None and alone.tokens > before.tokens  # fewer were allowed, and it took these
    kept = before if before is not None and alone.start == alone.reached else RetryPart((alone.request,), alone.tokens)
    if kept.tries_left is not None:
        return _one_try_less(kept, alone)
    if fewer < alone.tokens and not indivisible:
        return (replace(kept, tokens=fewer, start=alone.start),)
    return (replace(kept, tokens=alone.tokens, tries_left=LAST_TRIES, start=alone.start),)


def _one_try_less(before: RetryPart, alone: Work) -> tuple[RetryPart, ...]:
    left = LAST_TRIES if before.tries_left is None else before.tries_left - 1
    return (replace(before, tries_left=left, failed_at=alone.start),) if left else ()


def _together(work: tuple[Work, ...]) -> RetryPart:
    start = max(work[0].start, work[0].reached) if len(work) == 1 else 0
    return RetryPart(tuple(one.request for one in work), sum(one.tokens for one in work), start=start)


def _halves(work: tuple[Work, ...]) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """Cut in two, each as close to half of the tokens as the order allows, and neither empty."""
    sums = list(accumulate(one.tokens for one in work))
    cut = min(range(1, len(work)), key=lambda count: abs(2 * sums[count - 1] - sums[-1]))
    return work[:cut], work[cut:]


def cannot_run(alone: Work, length: int, why: str) -> str:
    """What a request that ends is told; `length` are its tokens so far."""
    return f"{alone.tokens} of the {length} tokens of this request do not fit in a step even alone{why}"


@dataclass(frozen=True, slots=True)
class RescuePolicy:
    """When rescues lower the limit of a step, and when it is restored."""

    usual_tokens: int  # the limit of a step
    least_tokens: int  # it is not lowered beyond this: a token for each running request
    window_steps: int = 256  # rescues within so many steps are repeated ones
    lowered_by: int = 2  # so many rescues within the window halve the limit, and each further one again
    calm_steps: int = 512  # so many steps without a rescue double it again

    def __post_init__(self) -> None:
        assert 0 < self.least_tokens <= self.usual_tokens


@dataclass(frozen=True, slots=True)
class Condition:
    """What the rescues so far have led to."""

    step_tokens: int
    rescues: int = 0
    ended_requests: int = 0
    rebuilds: int = 0
    recent: tuple[int, ...] = ()  # the steps of rescues that still count
    changed_at: int = 0  # the step of the last rescue, or of the last raise of the limit
    last_problem: str = ""  # of an audit

    @property
    def calm(self) -> bool:
        """Nothing is left to restore."""
        return not self.recent


def way_back_tokens(policy: RescuePolicy, condition: Condition) -> int:
    """Most tokens of a step up to a place where a request stood: a lowered limit does not go below the floor there."""
    return max(condition.step_tokens, min(CHUNK_FLOOR_TOKENS, policy.usual_tokens))


def after_rescue(policy: RescuePolicy, before: Condition, step: int, ended_requests: int = 0) -> Condition:
    """A rescue has ended: repeated ones lower the limit."""
    recent = (*(one for one in before.recent if step - one < policy.window_steps), step)
    lowered = max(policy.least_tokens, before.step_tokens // 2)
    return replace(
        before,
        step_tokens=lowered if len(recent) >= policy.lowered_by else before.step_tokens,
        rescues=before.rescues + 1,
        ended_requests=before.ended_requests + ended_requests,
        recent=recent,
        changed_at=step,
    )


def after_rebuild(before: Condition, problem: str) -> Condition:
    """The pool has been rebuilt."""
    return replace(before, rebuilds=before.rebuilds + 1, last_problem=problem)


def after_step(policy: RescuePolicy, before: Condition, step: int) -> Condition:
    """A step has run without a rescue: a while of them restores the limit, doubling it each time."""
    if before.calm or step - before.changed_at < policy.calm_steps:
        return before
    raised = min(policy.usual_tokens, 2 * before.step_tokens)
    restored = before.step_tokens == policy.usual_tokens
    return replace(
        before,
        step_tokens=raised,
        recent=() if restored else before.recent,
        changed_at=step,
        last_problem="" if restored else before.last_problem,
    )


def health(policy: RescuePolicy, condition: Condition, canary_held: bool) -> Health:
    """The condition in words."""
    reasons = _reasons(policy, condition, canary_held)
    return Health(
        status=Status.DEGRADED if reasons else Status.READY,
        reason="; ".join(reasons),
        rescues=condition.rescues,
        ended_requests=condition.ended_requests,
        rebuilds=condition.rebuilds,
        step_tokens=condition.step_tokens,
        usual_step_tokens=policy.usual_tokens,
        canary_held=canary_held,
    )


def _reasons(policy: RescuePolicy, condition: Condition, canary_held: bool) -> list[str]:
    reasons = []
    if condition.recent:
        count = len(condition.recent)
        reasons.append(
            f"out of memory {'once' if count == 1 else f'{count} times'} within {policy.window_steps} steps, and fewer "
            f"than {policy.calm_steps} steps since"
        )
    if condition.step_tokens < policy.usual_tokens:
        reasons.append(f"steps are limited to {condition.step_tokens} tokens instead of {policy.usual_tokens}")
    if condition.last_problem:
        reasons.append(f"the KV pool was rebuilt: {condition.last_problem}")
    if not canary_held:
        reasons.append("the canary is not held: its memory is in use")
    return reasons
