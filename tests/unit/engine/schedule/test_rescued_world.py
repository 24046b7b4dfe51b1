"""Rescues on a simulated device: a request that cannot get past some token of its text ends, and it alone.

The refusal holds from that token on. A request that is recomputed from its first token, because the failed step has
changed its recurrent state, runs well up to there.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from brim.engine.kv.geometry import LayerGroup
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.request import FinishReason
from brim.engine.rescue import Rescue
from brim.engine.schedule.events import SequenceEvent
from brim.engine.schedule.plan import StepLimits, StepPlan
from brim.errors import OutOfMemory
from brim.guard.rescue import RescuePolicy
from tests.unit.engine.schedule.checking_runner import Failed
from tests.unit.engine.schedule.world import Arrival, Key, World, request, undisturbed_answer, worlds


class RescuedWorld:
    """A world whose steps are rescued. No step runs that computes a token of one request after the first so many."""

    def __init__(self, world: World, culprit: Key, room: int) -> None:
        self.world = world
        self.culprit = culprit
        self.room = room
        limits = world.scheduler.limits
        runner: Any = SimpleNamespace(graphs_dropped=False, graphs_failed=False, host_problems=lambda running: [])
        policy = RescuePolicy(limits.max_batch_tokens, least_tokens=limits.max_batch)
        self.rescue = Rescue(world.loop, runner, _no_rebuild, policy)
        self._launch = world.runner.launch
        world.runner.launch = self._refusing  # type: ignore[method-assign]
        world.loop.step = self._step  # type: ignore[method-assign]
        world.check_order = lambda: None  # type: ignore[method-assign]  # parts are not run in the order of the queue

    def _refusing(self, plan: StepPlan, ledger: KvLedger) -> Any:
        self.world.runner.fails = lambda: self._is_refused(plan)
        try:
            return self._launch(plan, ledger)
        except Failed as error:
            raise OutOfMemory("refused") from error

    def _is_refused(self, plan: StepPlan) -> bool:
        return self._computed_up_to(plan) > self.room

    def _computed_up_to(self, plan: StepPlan) -> int:
        decodes = [
            length for one, length in zip(plan.decodes, plan.lengths, strict=True) if one.request.key == self.culprit
        ]
        chunks = [one.start + one.length for one in plan.chunks if one.sequence.request.key == self.culprit]
        return max(decodes + chunks, default=0)

    def _step(self) -> list[SequenceEvent]:
        self.rescue.advance()
        events = list(self.world.loop.events)
        self.world.loop.events.clear()
        return events

    def check_end(self) -> None:
        """The culprit has all tokens up to where it cannot go on; all others have theirs."""
        world = self.world
        culprit = world.sequences[self.culprit]
        wanted, _ = undisturbed_answer(culprit.request)
        runs = culprit.prompt_length + len(wanted) - 1 <= self.room  # the last token is drawn, and not computed
        if culprit.finish is not FinishReason.CANCELLED and not runs:
            assert culprit.finish is FinishReason.ERROR
            *drawn, last = world.events[self.culprit]
            assert [one.token for one in drawn] == wanted[: max(0, self.room + 1 - culprit.prompt_length)]
            assert last.error is not None
            assert "even alone" in last.error
            del world.sequences[self.culprit]
        assert self.rescue.health.rebuilds == 0
        world.check_end()


def _no_rebuild() -> NoReturn:
    raise AssertionError("nothing is in doubt")


@given(made=worlds(failing_rates=(0.0,)), data=st.data())
@settings(max_examples=120, deadline=None)
def test_a_request_that_cannot_get_past_a_token_ends_and_no_other(
    made: tuple[World, list[Arrival], int], data: st.DataObject
) -> None:
    world, arrivals, longest = made
    culprit = data.draw(st.sampled_from(arrivals)).request
    rescued = RescuedWorld(world, culprit.key, data.draw(st.integers(0, longest)))
    world.run(arrivals, most_steps=10 * (40 + (2 * longest + 4) * len(arrivals)))
    rescued.check_end()
    event(f"rescues: {rescued.rescue.health.rescues}, states: {world.scheduler.limits.has_states}")


def test_recurrent_requests_get_past_the_place_where_a_step_failed_in_one_rescue() -> None:
    world = World((LayerGroup(None, (0,), 1),), 400, StepLimits(4, 24, reuse_prefixes=False, has_states=True))
    rescued = RescuedWorld(world, ("b", 0), room=45)
    world.run([Arrival(0, request(name, 40, 20), None) for name in "abc"], most_steps=120)
    rescued.check_end()
    assert (rescued.rescue.health.rescues, rescued.rescue.health.ended_requests) == (1, 1)


class PassingRefusals(RescuedWorld):
    """Any step may be refused, and none for good."""

    def __init__(self, world: World, numbers: random.Random) -> None:
        super().__init__(world, ("nobody", 0), room=0)
        self._numbers = numbers

    def _is_refused(self, plan: StepPlan) -> bool:
        return self._numbers.random() < 0.05  # asked before a step and after it


@pytest.mark.parametrize("states", [False, True])
def test_refusals_that_pass_end_nobody_also_where_a_failure_costs_all_that_was_computed(states: bool) -> None:
    numbers, rescues, ended = random.Random(11), 0, 0
    for _ in range(30):
        limits = StepLimits(4, 24, reuse_prefixes=False, has_states=states)
        refused = PassingRefusals(World((LayerGroup(None, (0,), 1),), 800, limits), numbers)
        refused.world.run([Arrival(0, request(name, 60, 20), None) for name in "abcd"], most_steps=4000)
        rescues += refused.rescue.health.rescues
        ended += refused.rescue.health.ended_requests
        lost = [key for key, one in refused.world.sequences.items() if one.finish is FinishReason.ERROR]
        for key in lost:
            del refused.world.sequences[key]
        refused.world.check_end()
    assert rescues > 30
    assert ended == 0, f"{ended} of 120 requests in {rescues} rescues"
