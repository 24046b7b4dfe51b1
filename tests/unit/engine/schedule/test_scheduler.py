"""The scheduler and the loop on a simulated device: random requests, pools, cancellations and failures, and no model.

What is checked in every step and at the end is in `world`.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import event, given, settings

from brim.engine.kv.geometry import LayerGroup
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import FinishReason, MediaSpan, Request
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.plan import StepLimits
from brim.guard.admission import AdmissionView, Cause, Decision
from tests.unit.engine.schedule.simulated_device import VOCAB
from tests.unit.engine.schedule.world import EAGER, Arrival, World, full, request, undisturbed_answer, worlds


@given(made=worlds())
@settings(max_examples=250, deadline=None)
def test_every_request_gets_the_answer_of_an_undisturbed_run(made: tuple[World, list[Arrival], int]) -> None:
    world, arrivals, longest = made
    # The first request is never stopped, so each request takes a step for each of its tokens at the very most; of the
    # steps that may fail a third does not.
    world.run(arrivals, most_steps=10 * (40 + (2 * longest + 4) * len(arrivals)))
    world.check_end()
    event(f"preempted: {world.scheduler.preemptions > 0}")
    event(f"copied back: {world.scheduler.host_copies.figures.copied_back > 0}")
    event(f"failed: {world.failures > 0}")
    event(f"reused: {any(sequence.reused for sequence in world.sequences.values())}")


def test_when_blocks_run_out_the_last_admitted_is_preempted_and_recomputed() -> None:
    world = full(kv_tokens=40)
    world.run([Arrival(0, request(name, 8, 24), None) for name in ("a", "b", "c")], most_steps=200)
    world.check_end()
    assert world.scheduler.preemptions > 0
    assert world.sequences["a", 0].preemptions == 0


def test_a_request_that_fills_the_pool_to_the_last_block_is_served() -> None:
    world = full(kv_tokens=32)
    world.run([Arrival(0, request(name, 20, 12), None) for name in ("a", "b")], most_steps=100)
    world.check_end()


def test_generating_requests_are_never_held_up_by_a_prompt() -> None:
    """A long prompt gets the rest of each step; every decoding request gets a token in every step."""
    world = full(kv_tokens=400, max_batch_tokens=8)
    world.submit(request("short", 4, 40))
    for _ in range(3):
        world.step()
    world.submit(request("long", 100, 4))
    for _ in range(12):
        before = len(world.events["short", 0])
        world.step()
        assert len(world.events["short", 0]) == before + 1
    assert world.loop.figures.largest_step == 8
    world.run([], most_steps=100)
    world.check_end()


def test_forks_share_the_prompt() -> None:
    world = full(kv_tokens=64)
    parent = request("0", 16, 4)
    for index in range(3):
        world.submit(replace(parent, index=index, seed=index, params=SamplingParams(max_tokens=4, n=3)))
    most = 0
    while not world.loop.idle:
        world.step()
        most = max(most, world.ledger.pools[0].held)
    # The prompt's first three blocks are shared; its last, and the one of the answer, are each answer's own.
    assert most <= 3 + 3 * 2
    world.check_end()
    assert [world.sequences["0", index].reused for index in range(3)] == [0, 15, 15]


def test_a_late_fork_leaves_the_answer_of_the_first_alone() -> None:
    """The fork waits for a slot while the first answer fills blocks, and others find those blocks afterwards."""
    world = full(kv_tokens=256, max_batch=2, max_batch_tokens=16)
    first = replace(request("0", 6, 20), params=SamplingParams(max_tokens=20, n=2))
    world.submit(first)
    world.submit(request("other", 4, 14))
    world.submit(replace(first, index=1, seed=7))
    while not world.loop.idle:
        world.step()
    answer, _ = undisturbed_answer(first)
    again = Request("again", first.prompt + tuple(answer[:12]), SamplingParams(max_tokens=6), 0, 6)
    world.run([Arrival(0, again, None)], most_steps=40)
    assert world.sequences["again", 0].reused == 16
    world.check_end()


def test_a_preempted_fork_is_recomputed_from_the_start() -> None:
    """Nothing is found again here, so its prompt is computed from the first token on."""
    world = World((LayerGroup(None, (0,), 1),), 40, StepLimits(4, 16, reuse_prefixes=False))
    first = replace(request("0", 10, 26), params=SamplingParams(max_tokens=26, n=3))
    arrivals = [Arrival(0, first, None)]
    arrivals += [Arrival(0, replace(first, index=n, seed=n), None) for n in (1, 2)]
    world.run(arrivals, most_steps=200)
    world.check_end()
    assert world.scheduler.preemptions > 0
    assert world.sequences["0", 2].reused == 0


def test_tokens_that_belong_together_are_computed_together() -> None:
    spans = (MediaSpan(5, 11, together=True), MediaSpan(14, 20, together=True))
    world = full(kv_tokens=128, max_batch_tokens=8)
    arrivals = [Arrival(number, request(str(number), 24, 6, spans=spans), None) for number in range(3)]
    arrivals.append(Arrival(0, request("text", 9, 12), None))
    world.run(arrivals, most_steps=200)
    world.check_end()


def test_a_prefix_that_ends_before_an_image_needs_the_window_of_that_place() -> None:
    """All blocks are found but the first of a window: the image that follows it cannot be gone on from."""
    world = World((LayerGroup(None, (0,), 1), LayerGroup(5, (1,), 1)), 64, StepLimits(2, 16))
    asked = request("a", 16, 1, spans=(MediaSpan(6, 14, together=True),))
    first = world.submit(asked)
    while not world.loop.idle:
        world.step()
    windows = world.ledger.pools[1]
    taken = []
    while windows.find(first.digests[0]) is not None:
        taken.append(windows.take())
    for block in taken:
        windows.release(block)
    assert windows.find(first.digests[2]) is not None, "the window of a prefix that ends in the image is there"
    again = world.submit(replace(asked, id="b"))
    while not world.loop.idle:
        world.step()
    world.check_end()
    assert again.reused == 0


def test_a_deadline_costs_the_requests_that_are_due_and_no_others() -> None:
    world = full(kv_tokens=64, max_batch=1)
    now, looks = 0.0, 0
    world.loop._clock = lambda: now
    for number in range(200):
        world.submit(request(str(number), 4, 9, deadline=100.0 + number))
    due = world.loop._due

    def counting(entry: tuple[float, tuple[str, int]]) -> Sequence | None:
        nonlocal looks
        looks += 1
        return due(entry)

    world.loop._due = counting  # type: ignore[method-assign]
    for _ in range(5):
        world.step()
    assert looks == 0
    now = 103.5
    world.step()
    assert looks == 4
    ended = [key for key, one in world.sequences.items() if one.finish is FinishReason.DEADLINE]
    assert ended == [(str(number), 0) for number in range(4)]


def test_deadlines_of_requests_that_have_ended_are_forgotten() -> None:
    """Also where another request has the same name afterwards: it has its own deadline, or none."""
    world = full(kv_tokens=64)
    now = 0.0
    world.loop._clock = lambda: now
    for number in range(1000):
        world.cancel(world.submit(request("a", 4, 9, deadline=50.0 + number)).request.key)
    assert len(world.loop._deadlines) < 100
    later = world.submit(request("a", 4, 9, deadline=5000.0))
    now = 2000.0
    world.run([], most_steps=40)
    assert later.finish is FinishReason.LENGTH


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    world = full(kv_tokens=64, max_batch=1)
    now = 0.0
    world.loop._clock = lambda: now
    world.submit(request("runs", 4, 30, deadline=5.0))
    world.submit(request("waits", 4, 30, deadline=5.0))
    world.submit(request("has time", 4, 3, deadline=100.0))
    for _ in range(4):
        world.step()
    now = 5.0
    world.step()
    for name in ("runs", "waits"):
        assert world.events[name, 0][-1].finish is FinishReason.DEADLINE
    world.run([], most_steps=20)
    assert world.sequences["has time", 0].finish is FinishReason.LENGTH
    assert world.ledger.pools[0].held == 0


def test_those_of_a_higher_priority_start_first_and_others_in_order() -> None:
    world = full(kv_tokens=64, max_batch=1)
    priorities = (0, 5, 0, -3, 5, 9, 0)
    for number, priority in enumerate(priorities):
        world.submit(request(str(number), 4, 3, priority=priority))
    ended: list[int] = []
    for _ in range(80):
        world.step()
        ended += [
            int(name) for name, _ in world.sequences if world.sequences[name, 0].finish and int(name) not in ended
        ]
    assert ended == sorted(range(len(priorities)), key=lambda number: -priorities[number])
    world.check_end()


@pytest.mark.parametrize("seed", range(6))
def test_priorities_change_nothing_about_answers(seed: int) -> None:
    """With preemptions, in a pool that is too small."""
    rng = random.Random(seed)
    world = full(kv_tokens=64, max_batch=3, admission=EAGER)
    arrivals = [
        Arrival(rng.randrange(12), request(str(number), 9, 20, priority=rng.randrange(-1, 2)), None)
        for number in range(8)
    ]
    world.run(sorted(arrivals, key=lambda one: one.step), most_steps=400)
    world.check_end()
    assert world.scheduler.preemptions > 0


def test_a_policy_may_hold_requests_back() -> None:
    seen: list[AdmissionView] = []

    def one_at_a_time(view: AdmissionView) -> Decision:
        seen.append(view)
        return Decision(view.running == 0, Cause.SLOTS)

    world = full(kv_tokens=128, policy=one_at_a_time)
    world.run([Arrival(0, request(name, 9, 5), None) for name in ("a", "b", "c")], most_steps=60)
    world.check_end()
    # Nine tokens, and one more is drawn: as long as nothing else is known, that is the answer.
    assert seen[0] == AdmissionView(needed=(3,), peaks=(3,), blocks=(32,), kept_free=(0,), running=0, free_slots=4)
    assert max(view.running for view in seen) == 1


def test_prompts_on_their_way_are_promised_their_blocks() -> None:
    """The second is not admitted into room that the first one's prompt has yet to fill."""
    world = full(kv_tokens=80, max_batch_tokens=8)
    first = world.submit(request("first", 60, 4))
    second = world.submit(request("second", 20, 4))
    world.step()
    assert (first.slot is None, second.slot is None) == (False, True)
    world.run([], most_steps=100)
    world.check_end()
    assert world.scheduler.preemptions == 0


@pytest.mark.parametrize("overlap", [True, False])
def test_a_request_is_answered_one_step_late_or_at_once(overlap: bool) -> None:
    world = full(kv_tokens=64, overlap=overlap)
    world.submit(request("a", 4, 3))
    counts = []
    while not world.loop.idle:
        world.step()
        counts.append(len(world.events["a", 0]))
    assert counts == ([0, 1, 2, 3] if overlap else [1, 2, 3])


def test_what_is_shared_is_counted_once() -> None:
    """Forty requests share a long prefix: all of them fit beside each other, and so they run beside each other."""
    world = full(kv_tokens=(40 + 41 * 7) * 4, max_batch=64, max_batch_tokens=256)
    prefix = request("prefix", 40 * 4, 1).prompt
    world.submit(replace(request("first", 1, 24), prompt=(*prefix, 0)))
    while not world.sequences["first", 0].drawn_on_device:
        world.step()
    for number in range(40):
        own = tuple(random.Random(number).randrange(VOCAB) for _ in range(8))
        world.submit(replace(request(str(number), 1, 12), prompt=prefix + own))
    most, steps = 0, 0
    while not world.loop.idle:
        world.step()
        steps += 1
        most = max(most, len(world.scheduler.running))
    world.check_end()
    assert most == 41
    assert steps < 40


def test_a_fork_needs_the_block_it_copies_and_no_more() -> None:
    """A pool that holds one prompt and a block for each of its answers holds all of them at once."""
    world = full(kv_tokens=(25 + 5 + 5) * 4, max_batch=5, max_batch_tokens=128)
    first = replace(request("0", 98, 4), params=SamplingParams(max_tokens=4, n=5))
    for index in range(5):
        world.submit(replace(first, index=index, seed=index))
    most = 0
    while not world.loop.idle:
        world.step()
        most = max(most, len(world.scheduler.running))
    world.check_end()
    assert most == 5


def test_tokens_that_belong_together_are_not_starved_by_decodes() -> None:
    """An image that needs nearly a whole step gets one, though other requests generate all the time."""
    world = full(kv_tokens=4000, max_batch=8, max_batch_tokens=16)
    for number in range(6):
        world.submit(request(f"early {number}", 2, 40))
    for _ in range(4):
        world.step()
    world.submit(request("image", 15, 2, spans=(MediaSpan(1, 14, together=True),)))
    for number in range(30):
        world.submit(request(f"late {number}", 2, 40))
    for _ in range(12):
        world.step()
    assert world.sequences["image", 0].finish is FinishReason.LENGTH
    # Nobody who generates waits twice in a row.
    assert min(len(world.events[f"early {number}", 0]) for number in range(6)) >= 8
    world.run([], most_steps=2000)
    world.check_end()


@pytest.mark.parametrize(("windows", "states"), [((None, 9), False), ((5,), False), ((None,), True), ((None, 9), True)])
def test_a_prompt_of_many_answers_is_computed_once(windows: tuple[int | None, ...], states: bool) -> None:
    groups = tuple(LayerGroup(window, (number,), 1) for number, window in enumerate(windows))
    limits = StepLimits(8, 64, reuse_prefixes=False, has_states=states)
    world = World(groups, 4000, limits)
    first = replace(request("0", 200, 1), params=SamplingParams(max_tokens=1, n=8))
    for index in range(8):
        world.submit(replace(first, index=index, seed=index))
    world.run([], most_steps=60)
    world.check_end()
    assert world.runner.computed == 200 + 7
