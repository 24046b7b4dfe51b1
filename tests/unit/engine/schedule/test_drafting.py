"""Steps with drafts on the simulated device: nothing changes but the number of steps."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, settings

from brim.engine.kv.geometry import KvShape, LayerGroup
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.audit import scheduler_problems
from brim.engine.schedule.drafting import Snapshots, plan_drafts
from brim.engine.schedule.plan import NO_DRAFT, DraftTokens, StepLimits, StepPlan
from brim.guard.speculation import SpeculationSettings
from tests.unit.engine.schedule.world import WORST, Arrival, Guesses, World, request, worlds


@given(made=worlds(speculates=True))
@settings(max_examples=50, deadline=None)
def test_every_request_gets_the_answer_of_an_undisturbed_run(made: tuple[World, list[Arrival], int]) -> None:
    world, arrivals, longest = made
    world.run(arrivals, most_steps=10 * (40 + (2 * longest + 4) * len(arrivals)))
    world.check_end()
    assert scheduler_problems(world.scheduler) == []
    assert world.speculator is not None
    figures = world.speculator.figures
    assert 0 <= figures.accepted <= figures.proposed
    event(f"accepted: {figures.accepted > 0}")
    event(f"rejected: {figures.proposed > figures.accepted}")
    event(f"failed: {world.failures > 0}")


@given(made=worlds(WORST, failing_rates=(0.0,), speculates=True))
@settings(max_examples=30, deadline=None)
def test_in_mode_worst_nobody_is_preempted_for_drafts(made: tuple[World, list[Arrival], int]) -> None:
    """Answers with drafts grow faster than others, in any order; blocks do not run out all the same."""
    world, arrivals, longest = made
    world.run(arrivals, most_steps=10 * (40 + (2 * longest + 4) * len(arrivals)))
    world.check_end()
    assert world.scheduler.preemptions == 0


@pytest.mark.parametrize(
    ("size", "kv_tokens", "short", "long", "new"),
    [
        (16, 416, (152, 40), (10, 61), (110, 69)),
        (8, 480, (137, 66), (9, 96), (118, 70)),
        (16, 448, (138, 56), (11, 83), (103, 81)),
    ],
)
def test_a_request_that_is_admitted_is_not_preempted_for_drafts_of_that_step(
    size: int, kv_tokens: int, short: tuple[int, int], long: tuple[int, int], new: tuple[int, int]
) -> None:
    """Admission counts on one token for each running request in a step."""
    world = World(
        (LayerGroup(None, (0,), 1),),
        kv_tokens,
        StepLimits(8, 400, reuse_prefixes=False, max_drafted=8),
        size=size,
        admission=WORST,
        proposer=Guesses(random.Random(0), 1.0),
        speculation=SpeculationSettings(16, 0.75, depth=7),
    )
    plain = request("short", *short)
    world.submit(replace(plain, params=replace(plain.params, speculate=False)))
    world.submit(request("long", *long))
    for _ in range(3):
        world.step()
    world.submit(request("new", *new))
    while not world.loop.idle:
        world.step()
    world.check_end()
    assert world.scheduler.preemptions == 0


def guessing(right: float, kv_tokens: int = 400, max_drafted: int = 4, **others: Any) -> World:
    speculation = SpeculationSettings(max_drafted, 1.0, depth=4)
    limits = StepLimits(
        4, 32, max_drafted=max_drafted, has_states=others.pop("has_states", False), reuse_prefixes=False
    )
    groups = others.pop("groups", (LayerGroup(None, (0,), 1),))
    return World(
        groups, kv_tokens, limits, proposer=Guesses(random.Random(1), right), speculation=speculation, **others
    )


def steps_of(world: World, count: int = 3) -> int:
    world.run([Arrival(0, request(str(number), 5, 60), None) for number in range(count)], most_steps=1000)
    world.check_end()
    return world.loop.figures.steps


def test_right_drafts_make_fewer_steps() -> None:
    world = guessing(1.0)
    assert steps_of(world) < 30  # and 60 tokens each
    assert world.speculator is not None
    figures = world.speculator.figures
    assert figures.accepted == figures.proposed > 100
    assert world.loop.figures.drawn == 180


def test_wrong_drafts_cost_no_step() -> None:
    world = guessing(0.0)
    assert steps_of(world) <= 61
    assert world.speculator is not None
    assert world.speculator.figures.accepted == 0


def test_a_rejected_draft_costs_a_recurrent_model_no_step_either() -> None:
    """Its last tokens are recomputed together with the next one."""
    assert steps_of(guessing(0.0, has_states=True)) <= 61
    assert steps_of(guessing(1.0, has_states=True)) < 30


def test_blocks_of_rejected_tokens_are_free_before_the_next_step_is_planned() -> None:
    world = guessing(0.0, size=1)
    world.submit(request("a", 5, 40))
    drafted = 0
    for _ in range(20):
        world.step()
        if world.runner.verified:
            drafted += 1
            (sequence,) = world.scheduler.running
            assert world.ledger.pools[0].held == sequence.computed
    assert drafted > 5


@pytest.mark.parametrize(("free", "drafted"), [(9, 6), (2, 6), (1, 5), (0, 1)])
def test_where_blocks_are_short_less_is_drafted(free: int, drafted: int) -> None:
    """Six tokens behind a text of 7 in blocks of 4: the first is in its last block, the others in two more."""
    ledger = KvLedger((LayerGroup(None, (0,), 1),), KvShape(0, 4, (2 + free,)))
    sequence = Sequence(request("a", 6, 20), [0] * 7, computed=6, slot=0, blocks=ledger.open(0))
    assert sequence.blocks is not None
    assert ledger.reserve(sequence.blocks, 0, 7)
    ledger.commit()
    decodes, drafts = plan_drafts([sequence], {sequence: (1,) * 6}, 6, ledger, None)
    assert (decodes, drafts) == ([sequence], (DraftTokens((1,) * drafted),))
    assert ledger.pools[0].available == max(0, free - 2)
    ledger.rollback()
    assert ledger.pools[0].available == free


def test_without_a_row_for_its_state_a_request_gets_no_draft_and_no_blocks() -> None:
    ledger = KvLedger((LayerGroup(None, (0,), 1),), KvShape(0, 4, (20,)))
    texts = [
        Sequence(request(name, 6, 20), [0] * 8, computed=7, slot=slot, blocks=ledger.open(slot))
        for slot, name in enumerate("ab")
    ]
    for sequence in texts:
        assert sequence.blocks is not None
        assert ledger.reserve(sequence.blocks, 0, 8)
    first, second = texts
    snapshots = Snapshots(3, 1)
    decodes, drafts = plan_drafts(texts, {first: (1, 1), second: (2, 2)}, 9, ledger, snapshots)
    assert (decodes, drafts) == ([second, first], (NO_DRAFT, DraftTokens((1, 1), snapshot=3)))
    assert [len(one.blocks.tables[0]) for one in texts if one.blocks is not None] == [3, 2]
    assert snapshots.problems(texts) == []


def test_drafts_get_what_is_left_of_a_step() -> None:
    ledger = KvLedger((LayerGroup(None, (0,), 1),), KvShape(0, 4, (20,)))
    texts = [
        Sequence(request(name, 6, 20), [0] * 7, computed=6, slot=slot, blocks=ledger.open(slot))
        for slot, name in enumerate("abc")
    ]
    for sequence in texts:
        assert sequence.blocks is not None
        assert ledger.reserve(sequence.blocks, 0, 7)
    first, second, third = texts
    decodes, drafts = plan_drafts(texts, {first: (1, 1, 1), third: (2, 2, 2)}, 5, ledger, None)
    assert (decodes, drafts) == ([second, first, third], (NO_DRAFT, DraftTokens((1, 1, 1)), DraftTokens((2, 2))))


@pytest.mark.parametrize("has_states", [False, True])
def test_windows_move_on_with_what_stands(has_states: bool) -> None:
    """And not beyond the place that a request goes on from."""
    groups = LayerGroup(None, (0,), 1), LayerGroup(5, (1,), 1)
    world = guessing(0.8, groups=groups, size=2, has_states=has_states)
    world.submit(request("a", 9, 50))
    while not world.loop.idle:
        world.step()
        for sequence in world.scheduler.running:
            assert sequence.blocks is not None
            if not sequence.unseen and sequence in world.runner.verified:
                windowed = world.ledger.groups[1]
                assert sequence.blocks.given_up[1] == windowed.first_block_needed(sequence.computed, 2)
    world.check_end()


@pytest.mark.parametrize("has_states", [False, True])
def test_what_requests_will_hold_is_forecast_from_accepted_tokens(has_states: bool) -> None:
    """Otherwise others would be admitted into blocks that answers with drafts reach sooner."""
    world = guessing(0.8, admission=WORST, has_states=has_states)
    for name in ("a", "b"):
        world.submit(request(name, 5, 40))
    forecast = world.scheduler.forecast
    while not world.loop.idle:
        world.step()
        forecast.final_blocks()
        for sequence in world.scheduler.running:
            assert sequence.slot is not None
            assert forecast._future.get(sequence.slot) == forecast._running_claim(sequence)
    assert world.runner.verified


def test_no_drafts_for_penalties_or_for_those_who_do_not_want_them() -> None:
    world = guessing(1.0)
    for name, params in (
        ("penalised", SamplingParams(max_tokens=20, presence_penalty=0.5)),
        ("opted out", SamplingParams(max_tokens=20, speculate=False)),
    ):
        world.submit(replace(request(name, 4, 20), params=params))
    world.run([], most_steps=100)
    world.check_end()
    assert world.runner.verified == set()


def test_a_batch_that_grows_in_planning_is_not_drafted_for() -> None:
    """The gate sees the batch before requests are admitted: a step with drafts is never larger than it allows."""
    world = guessing(1.0, max_drafted=2)
    world.run([Arrival(step, request(str(step), 5, 30), None) for step in (0, 4, 6)], most_steps=300)
    world.check_end()  # the runner checks every plan


def test_accepted_is_what_was_drawn_in_the_same_places() -> None:
    draft = DraftTokens((4, 5, 6))
    assert [draft.accepted(drawn) for drawn in ([4, 5, 6, 7], [4, 9, 6, 7], [9, 5, 6, 7])] == [3, 1, 0]
    assert NO_DRAFT.accepted([3]) == 0
    assert StepPlan((), (), (), ()).decode_rows == 0
