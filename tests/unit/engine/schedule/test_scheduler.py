"""The scheduler and the loop on a simulated device: random requests, pools, cancellations and failures, and no model.

The device checks each query's blocks (`simulated_device`); the runner checks each plan; the end checks that every
request got the answer of an undisturbed run, and that every block was freed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from brim.engine.kv.geometry import LayerGroup, pool_shape
from brim.engine.kv.ledger import KvLedger
from brim.engine.loop import ServingLoop
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import FinishReason, MediaSpan, Request
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.events import Event
from brim.engine.schedule.scheduler import Limits, Scheduler
from brim.guard.admission import AdmissionView, Decision, admit
from tests.unit.engine.schedule.checking_runner import CheckingRunner, Failed
from tests.unit.engine.schedule.simulated_device import VOCAB, next_token

STOP = 2
Key = tuple[str, int]


def undisturbed_answer(request: Request) -> tuple[list[int], FinishReason]:
    """The answer of a request in a batch of its own."""
    text = list(request.prompt)
    for _ in range(request.max_tokens):
        text.append(next_token(text, request.seed))
        if text[-1] in request.stop_ids and len(text) - len(request.prompt) > request.params.min_tokens:
            return text[len(request.prompt) :], FinishReason.STOP
    return text[len(request.prompt) :], FinishReason.LENGTH


@dataclass
class Arrival:
    """A request, and when it comes; a cancellation, and when that comes."""

    step: int
    request: Request
    cancelled_at: int | None


class World:
    """A scheduler at work, and what is expected of it."""

    def __init__(
        self,
        groups: tuple[LayerGroup, ...],
        kv_tokens: int,
        limits: Limits,
        *,
        size: int = 4,
        overlap: bool = True,
        fails: Callable[[], bool] = lambda: False,
        policy: Callable[[AdmissionView], Decision] = admit,
    ) -> None:
        shape = pool_shape(groups, kv_tokens, size, limits.max_batch, limits.max_batch_tokens)
        self.ledger = KvLedger(groups, shape)
        self.scheduler = Scheduler(self.ledger, limits, policy=policy)
        self.runner = CheckingRunner(self.ledger, limits, fails)
        self.loop = ServingLoop(self.scheduler, self.runner, overlap)  # type: ignore[arg-type]
        self.failures = 0
        self.order: dict[Key, int] = {}
        self.events: dict[Key, list[Event]] = {}
        self.sequences: dict[Key, Sequence] = {}

    def submit(self, request: Request) -> Sequence:
        sequence = Sequence(request, list(request.prompt))
        self.order[request.key] = len(self.order)
        self.events[request.key] = []
        self.sequences[request.key] = sequence
        self.loop.submit(sequence)
        return sequence

    def cancel(self, key: Key) -> None:
        self.scheduler.finish(self.sequences[key], FinishReason.CANCELLED)

    def step(self) -> None:
        before = self.standing()
        preempted = self.scheduler.preemptions
        try:
            for event_ in self.loop.step():
                self.events[event_.sequence.request.key].append(event_)
        except Failed:
            self.failures += 1
            if self.scheduler.preemptions == preempted:
                assert self.standing() == before
        self.check_order()

    def standing(self) -> Any:
        """Everything that a failed step must leave as it was."""
        names = ("slot", "computed", "unseen", "reused", "drawn_on_device", "preemptions", "tokens", "blocks")
        queues = (self.scheduler.running, self.scheduler.waiting)
        return [
            [(one.request.key, *(deepcopy(getattr(one, name)) for name in names)) for one in queue] for queue in queues
        ]

    def check_order(self) -> None:
        """First come, first served: no request overtakes another, and the last admitted is preempted.

        Only who was not in a step that failed stays when those that were lose their recurrent states.
        """
        if self.scheduler.limits.has_states and self.failures:
            return
        queue = [*self.scheduler.running, *self.scheduler.waiting]
        places = [self.order[sequence.request.key] for sequence in queue]
        assert places == sorted(places)

    def run(self, arrivals: list[Arrival], most_steps: int) -> None:
        waiting = sorted(arrivals, key=lambda arrival: arrival.step)
        number = 0
        while waiting or not self.loop.idle:
            assert number < most_steps, "the requests do not come to an end"
            while waiting and waiting[0].step <= number:
                self.submit(waiting.pop(0).request)
            for arrival in arrivals:
                if arrival.cancelled_at == number and arrival.request.key in self.sequences:
                    self.cancel(arrival.request.key)
            if not self.loop.idle:
                self.step()
            number += 1

    def check_end(self) -> None:
        for pool in self.ledger.pools:
            assert (pool.held, pool.available) == (0, pool.blocks)
        slots = self.scheduler._free_slots
        assert sorted(slots) == list(range(self.scheduler.limits.max_batch))
        for key, sequence in self.sequences.items():
            got = [event_.token for event_ in self.events[key] if event_.token is not None]
            wanted, reason = undisturbed_answer(sequence.request)
            ends = [event_.finish for event_ in self.events[key] if event_.finish is not None]
            if sequence.finish is FinishReason.CANCELLED:
                assert got == wanted[: len(got)]
                assert ends == []
            else:
                assert (got, ends, sequence.finish) == (wanted, [reason], reason)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, list[Arrival], int]:
    size = draw(st.sampled_from([1, 2, 4]))
    windows = draw(st.sampled_from([(None,), (None,), (None, 5), (3,), (None, 9, 2)]))
    groups = tuple(LayerGroup(window, (number,), 1) for number, window in enumerate(windows))
    max_batch = draw(st.integers(1, 5))
    states = draw(st.sampled_from([False, False, True]))
    reuse = not states and draw(st.booleans())
    limits = Limits(max_batch, draw(st.integers(max_batch, 12)), reuse_prefixes=reuse, has_states=states)
    longest = draw(st.integers(2, 40))
    kv_tokens = longest + draw(st.sampled_from([0, 0, size, longest // 2, 40]))
    # With recurrent layers each failure begins all texts of the step anew.
    failing = draw(st.sampled_from([0.0, 0.0, 0.01, 0.02] if states else [0.0, 0.0, 0.15, 0.4]))
    numbers = random.Random(draw(st.integers(0, 1000)))
    fails = lambda: numbers.random() < failing  # noqa: E731
    world = World(groups, kv_tokens, limits, size=size, overlap=draw(st.booleans()), fails=fails)
    arrivals: list[Arrival] = []
    seeds = st.integers(0, 2)
    for number in range(draw(st.integers(1, 7))):
        most_prompt = draw(st.sampled_from([longest - 1, max(1, longest // 4)]))
        prompt = tuple(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=most_prompt)))
        if arrivals and draw(st.booleans()):  # begins like one before
            earlier = draw(st.sampled_from(arrivals)).request.prompt
            prompt = (earlier + prompt)[: longest - 1]
        most = longest - len(prompt) if draw(st.booleans()) else draw(st.integers(1, longest - len(prompt)))
        count = draw(st.sampled_from([1, 1, 2, 4]))
        penalty = draw(st.sampled_from([0.0, 0.0, 0.5]))  # such a request is read back at once
        params = SamplingParams(
            max_tokens=most, n=count, presence_penalty=penalty, min_tokens=draw(st.integers(0, min(2, most)))
        )
        stops = draw(st.sampled_from([frozenset[int](), frozenset({STOP})]))
        first = Request(str(number), prompt, params, draw(seeds), most, stops)
        step = draw(st.integers(0, 12))
        for index in range(count):
            request = replace(first, index=index, seed=first.seed + index)
            cancelled = draw(st.one_of(st.none(), st.none(), st.none(), st.integers(step, step + 20)))
            arrivals.append(Arrival(step, request, cancelled))
    return world, arrivals, longest


@given(made=worlds())
@settings(max_examples=250, deadline=None)
def test_every_request_gets_the_answer_of_an_undisturbed_run(made: tuple[World, list[Arrival], int]) -> None:
    world, arrivals, longest = made
    # Whoever is first is never stopped, so each request takes a step for each of its tokens at the very most; of the
    # steps that may fail a third does not.
    world.run(arrivals, most_steps=10 * (40 + (2 * longest + 4) * len(arrivals)))
    world.check_end()
    event(f"preempted: {world.scheduler.preemptions > 0}")
    event(f"failed: {world.failures > 0}")
    event(f"reused: {any(sequence.reused for sequence in world.sequences.values())}")


def full(kv_tokens: int, max_batch: int = 4, max_batch_tokens: int = 16, **others: Any) -> World:
    return World((LayerGroup(None, (0,), 1),), kv_tokens, Limits(max_batch, max_batch_tokens), **others)


def request(name: str, prompt: int, most: int, seed: int = 0, **others: Any) -> Request:
    tokens = tuple(random.Random(name).randrange(VOCAB) for _ in range(prompt))
    return Request(name, tokens, SamplingParams(max_tokens=most), seed, most, **others)


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
    world = World((LayerGroup(None, (0,), 1),), 40, Limits(4, 16, reuse_prefixes=False))
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


def test_a_policy_may_hold_requests_back() -> None:
    seen: list[AdmissionView] = []

    def one_at_a_time(view: AdmissionView) -> Decision:
        seen.append(view)
        return Decision(view.running == 0, "one at a time")

    world = full(kv_tokens=128, policy=one_at_a_time)
    world.run([Arrival(0, request(name, 9, 5), None) for name in ("a", "b", "c")], most_steps=60)
    world.check_end()
    assert seen[0] == AdmissionView(needed=(3,), available=(32,), promised=(0,), running=0, free_slots=4)
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
    limits = Limits(8, 64, reuse_prefixes=False, has_states=states)
    world = World(groups, 4000, limits)
    first = replace(request("0", 200, 1), params=SamplingParams(max_tokens=1, n=8))
    for index in range(8):
        world.submit(replace(first, index=index, seed=index))
    world.run([], most_steps=60)
    world.check_end()
    assert world.runner.computed == 200 + 7
