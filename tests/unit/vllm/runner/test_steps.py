"""The worst steps stay inside the scheduler's limits, and reach them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.records.memory import StressKind
from brim.vllm.runner.steps import (
    DECODE,
    LONGEST_SCORES,
    PREFILL,
    SCORES,
    VERIFY,
    Draw,
    SchedulerLimits,
    small_steps,
    worst_steps,
)

LIMITS = st.builds(
    lambda batch_tokens, slots, **others: SchedulerLimits(batch_tokens + slots, slots=slots, **others),
    batch_tokens=st.integers(1, 20_000),
    slots=st.integers(0, 3),
    rows=st.integers(1, 1024),
    length=st.integers(2, 200_000),
    drafts=st.integers(0, 8),
    encodes=st.booleans(),
    most_chunk=st.sampled_from([0, 0, 16, 1024]),
)


@given(LIMITS)
def test_steps_stay_inside_the_limits(limits: SchedulerLimits) -> None:
    for step in (*worst_steps(limits), *small_steps(limits)):
        assert len(step.rows) <= limits.rows
        assert step.shape.tokens + limits.slots * len(step.rows) <= limits.batch_tokens
        for row in step.rows:
            assert 1 <= row.new <= limits.chunk
            assert row.past >= 0
            drafted = step.drafts + 1 if step.drafts else 0
            assert row.past + row.new + drafted <= limits.longest


@given(LIMITS)
def test_the_largest_steps_reach_them(limits: SchedulerLimits) -> None:
    steps = {step.shape.name: step for step in worst_steps(limits)}
    rows = min(limits.rows, limits.batch_tokens // (1 + limits.slots))
    assert len(steps[DECODE].rows) == len(steps[PREFILL].rows) == len(steps[SCORES].rows) == rows
    assert steps[PREFILL].shape.tokens == min(limits.batch_tokens - limits.slots * rows, rows * limits.chunk)
    assert [row.scored for row in steps[SCORES].rows] == [True] + [False] * (rows - 1)


@given(LIMITS)
def test_the_longest_prompt_that_fits_into_a_step_is_scored(limits: SchedulerLimits) -> None:
    scored = [row.new for step in worst_steps(limits) for row in step.rows if row.scored]
    assert max(scored) == min(limits.batch_tokens - limits.slots, limits.chunk)


@given(LIMITS)
def test_a_scored_prompt_is_the_end_of_the_longest_one(limits: SchedulerLimits) -> None:
    ends = {row.past + row.new for step in worst_steps(limits) for row in step.rows if row.scored}
    assert ends == {limits.longest}


def test_all_tokens_of_a_batch_are_in_the_prefill() -> None:
    limits = SchedulerLimits(batch_tokens=8192, rows=256, length=8192, drafts=3, encodes=True)
    by_name = {step.shape.name: step.shape for step in worst_steps(limits)}
    assert list(by_name) == [PREFILL, SCORES, LONGEST_SCORES, DECODE, VERIFY, StressKind.IMAGE]
    assert by_name[PREFILL].tokens == 8192
    assert (by_name[SCORES].tokens, by_name[DECODE].tokens) == (8192, 256)
    assert (by_name[VERIFY].tokens, by_name[VERIFY].sequences) == (1024, 256)


def test_prompts_that_are_cut_are_scored_two_at_a_time() -> None:
    limits = SchedulerLimits(batch_tokens=8192, rows=256, length=8192, most_chunk=1520)
    by_name = {step.shape.name: step for step in worst_steps(limits)}
    assert [(row.new, row.past, row.scored) for row in by_name[LONGEST_SCORES].rows] == [(1520, 6671, True)] * 2
    assert by_name[PREFILL].shape.tokens == 8192


def test_seeded_and_unseeded_rows_are_both_drawn() -> None:
    steps = worst_steps(SchedulerLimits(batch_tokens=512, rows=8, length=512))
    assert {row.seed is None for step in steps for row in step.rows} == {True, False}
    assert any(row.restricted for step in steps for row in step.rows)


@given(LIMITS)
def test_small_steps_are_no_larger_than_the_worst_ones(limits: SchedulerLimits) -> None:
    largest = max(step.shape.tokens for step in worst_steps(limits))
    for step in small_steps(limits):
        assert step.shape.tokens <= largest
        assert not any(row.scored or row.seed is not None for row in step.rows)


def test_small_steps_have_lengths_between_powers_of_two_drawn_in_every_way() -> None:
    steps = small_steps(SchedulerLimits(batch_tokens=128, rows=32, length=4096))
    assert [step.shape.tokens for step in steps[:10]] == [1, 2, 16, 25, 32, 49, 64, 97, 128, 1]
    assert {row.draw for step in steps for row in step.rows} == set(Draw)
    assert [len(step.rows) for step in steps[9:]] == [rows for rows in (1, 2, 9, 32) for _ in Draw]
    assert all({row.draw for row in step.rows} == {draw} for step, draw in zip(steps[9:], [*Draw] * 4, strict=True))


def test_no_small_step_draws_by_top_k_alone_where_drafts_are_verified_greedily() -> None:
    steps = small_steps(SchedulerLimits(batch_tokens=128, rows=32, length=4096, drafts=4, draws_drafts=False))
    assert {row.draw for step in steps for row in step.rows} == {*Draw} - {Draw.TOP_K}
