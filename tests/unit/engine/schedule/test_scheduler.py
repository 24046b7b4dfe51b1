"""The scheduler and the loop on a simulated device: random requests, pools and cancellations, and no model.

The device checks each query's blocks (`simulated_device`); the runner checks each plan; the end checks that everybody
got the answer they would have got alone, and that every block came back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from brim.engine.kv.geometry import LayerGroup, pool_shape
from brim.engine.kv.ledger import KvLedger, RequestBlocks
from brim.engine.loop import ServingLoop
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import FinishReason, MediaSpan, Request
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.events import Event
from brim.engine.schedule.plan import StepPlan
from brim.engine.schedule.scheduler import Limits, Scheduler
from brim.guard.admission import AdmissionView, Decision, admit
from tests.unit.engine.schedule.simulated_device import VOCAB, SimulatedDevice, next_token

STOP = 2


def answer_alone(request: Request) -> tuple[list[int], FinishReason]:
    """What a request gets when nobody else is there."""
    text = list(request.prompt)
    for _ in range(request.max_tokens):
        text.append(next_token(text, request.seed))
        if text[-1] in request.stop_ids and len(text) - len(request.prompt) > request.params.min_tokens:
            return text[len(request.prompt) :], FinishReason.STOP
    return text[len(request.prompt) :], FinishReason.LENGTH


class CheckingRunner:
    """Runs plans on the simulated device at once, as a device does in its own order, and checks every plan."""

    def __init__(self, ledger: KvLedger, limits: Limits) -> None:
        self.device = SimulatedDevice(ledger)
        self.limits = limits
        self.texts: dict[Sequence, tuple[RequestBlocks, list[int]]] = {}  # what the device has, and in which residency

    def launch(self, plan: StepPlan, ledger: KvLedger) -> Any:
        assert 0 < plan.tokens <= self.limits.max_batch_tokens
        slots = [*plan.slots, *(chunk.slot for chunk in plan.chunks)]
        assert len(slots) == len(set(slots)) <= self.limits.max_batch
        assert len(plan.decodes) == len(plan.slots) == len(plan.lengths)
        self.device.follow()
        drawn = []
        for sequence, slot, length in zip(plan.decodes, plan.slots, plan.lengths, strict=True):
            text = self._known(sequence)
            text.append(self.device.last_token[slot])
            assert len(text) == length, "a token was left out, or computed twice"
            drawn.append(self._run(sequence, slot, text, length - 1))
        for chunk in plan.chunks:
            sequence = chunk.sequence
            assert chunk.length > 0
            known = self._known(sequence)
            assert len(known) == chunk.start, "chunks follow one another"
            text = known + sequence.tokens[chunk.start : chunk.start + chunk.length]
            assert len(text) == chunk.start + chunk.length, "all tokens of a chunk are known"
            self._check_spans(sequence.request, chunk.start, len(text))
            token = self._run(sequence, chunk.slot, text, chunk.start)
            assert chunk.draws == (len(text) == len(sequence.tokens))
            if chunk.draws:
                drawn.append(token)
        self._check_windows(plan, ledger)
        return SimpleNamespace(plan=plan, sampled=None, prompt={}, tokens=lambda: drawn)

    @staticmethod
    def _check_windows(plan: StepPlan, ledger: KvLedger) -> None:
        """What no later token sees has been given up, and nothing else."""
        for sequence in [*plan.decodes, *(chunk.sequence for chunk in plan.chunks)]:
            assert sequence.blocks is not None
            first = [group.first_block_needed(sequence.computed, ledger.block_size) for group in ledger.groups]
            assert sequence.blocks.given_up == first

    def _known(self, sequence: Sequence) -> list[int]:
        """What has been computed since the request got its blocks; what it found in the pool, if that is just now."""
        blocks, text = self.texts.get(sequence, (None, []))
        return text if blocks is sequence.blocks else sequence.tokens[: sequence.reused]

    def _run(self, sequence: Sequence, slot: int, text: list[int], start: int) -> int:
        self.device.compute(slot, text, start)
        assert sequence.blocks is not None
        self.texts[sequence] = sequence.blocks, text
        token = next_token(text, sequence.request.seed)
        self.device.last_token[slot] = token
        return token

    def _check_spans(self, request: Request, start: int, end: int) -> None:
        for span in request.spans:
            assert not (span.together and (start < span.end) and (span.start < start or span.start < end < span.end))


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
        can_fork: bool = True,
        policy: Callable[[AdmissionView], Decision] = admit,
    ) -> None:
        shape = pool_shape(groups, kv_tokens, size, limits.max_batch, limits.max_batch_tokens)
        self.ledger = KvLedger(groups, shape)
        self.scheduler = Scheduler(self.ledger, limits, policy=policy, can_fork=can_fork)
        self.runner = CheckingRunner(self.ledger, limits)
        self.loop = ServingLoop(self.scheduler, self.runner, overlap)  # type: ignore[arg-type]
        self.order: dict[str, int] = {}
        self.events: dict[str, list[Event]] = {}
        self.sequences: dict[str, Sequence] = {}

    def submit(self, request: Request) -> Sequence:
        sequence = Sequence(request, list(request.prompt))
        self.order[request.id] = len(self.order)
        self.events[request.id] = []
        self.sequences[request.id] = sequence
        self.loop.submit(sequence)
        return sequence

    def cancel(self, request_id: str) -> None:
        self.scheduler.finish(self.sequences[request_id], FinishReason.CANCELLED)

    def step(self) -> None:
        for event_ in self.loop.step():
            self.events[event_.sequence.request.id].append(event_)
        self.check_order()

    def check_order(self) -> None:
        """First come, first served: nobody overtakes, and who came last gives way."""
        queue = [*self.scheduler.running, *self.scheduler.waiting]
        places = [self.order[sequence.request.id] for sequence in queue]
        assert places == sorted(places)

    def run(self, arrivals: list[Arrival], most_steps: int) -> None:
        waiting = sorted(arrivals, key=lambda arrival: arrival.step)
        number = 0
        while waiting or not self.loop.idle:
            assert number < most_steps, "the requests do not come to an end"
            while waiting and waiting[0].step <= number:
                self.submit(waiting.pop(0).request)
            for arrival in arrivals:
                if arrival.cancelled_at == number and arrival.request.id in self.sequences:
                    self.cancel(arrival.request.id)
            if not self.loop.idle:
                self.step()
            number += 1

    def check_end(self) -> None:
        for pool in self.ledger.pools:
            assert (pool.held, pool.available) == (0, pool.blocks)
        slots = self.scheduler._free_slots
        assert sorted(slots) == list(range(self.scheduler.limits.max_batch))
        for request_id, sequence in self.sequences.items():
            got = [event_.token for event_ in self.events[request_id] if event_.token is not None]
            wanted, reason = answer_alone(sequence.request)
            ends = [event_.finish for event_ in self.events[request_id] if event_.finish is not None]
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
    limits = Limits(max_batch, draw(st.integers(max_batch, 12)), reuse_prefixes=draw(st.booleans()))
    longest = draw(st.integers(2, 40))
    kv_tokens = longest + draw(st.sampled_from([0, 0, size, longest // 2, 40]))
    world = World(groups, kv_tokens, limits, size=size, overlap=draw(st.booleans()), can_fork=draw(st.booleans()))
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
        first = Request(f"{number}/0", prompt, params, draw(seeds), most, stops)
        step = draw(st.integers(0, 12))
        for index in range(count):
            request = replace(first, id=f"{number}/{index}", seed=first.seed + index)
            if index:
                request = replace(request, fork_of=first.id)
            cancelled = draw(st.one_of(st.none(), st.none(), st.none(), st.integers(step, step + 20)))
            arrivals.append(Arrival(step, request, cancelled))
    return world, arrivals, longest


@given(made=worlds())
@settings(max_examples=250, deadline=None)
def test_everybody_gets_the_answer_they_would_get_alone(made: tuple[World, list[Arrival], int]) -> None:
    world, arrivals, longest = made
    # Whoever is first is never stopped, so each request takes a step for each of its tokens at the very most.
    world.run(arrivals, most_steps=40 + (2 * longest + 4) * len(arrivals))
    world.check_end()
    event(f"preempted: {world.scheduler.preemptions > 0}")
    event(f"reused: {any(sequence.reused for sequence in world.sequences.values())}")


def full(kv_tokens: int, max_batch: int = 4, max_batch_tokens: int = 16, **others: Any) -> World:
    return World((LayerGroup(None, (0,), 1),), kv_tokens, Limits(max_batch, max_batch_tokens), **others)


def request(name: str, prompt: int, most: int, seed: int = 0, **others: Any) -> Request:
    tokens = tuple(random.Random(name).randrange(VOCAB) for _ in range(prompt))
    return Request(name, tokens, SamplingParams(max_tokens=most), seed, most, **others)


def test_when_blocks_run_out_the_last_to_come_gives_way_and_is_computed_again() -> None:
    world = full(kv_tokens=40)
    world.run([Arrival(0, request(name, 8, 24), None) for name in ("a", "b", "c")], most_steps=200)
    world.check_end()
    assert world.scheduler.preemptions > 0
    assert world.sequences["a"].preemptions == 0


def test_a_request_that_fills_the_pool_to_the_last_block_is_served() -> None:
    world = full(kv_tokens=32)
    world.run([Arrival(0, request(name, 20, 12), None) for name in ("a", "b")], most_steps=100)
    world.check_end()


def test_generating_requests_are_never_held_up_by_a_prompt() -> None:
    """A long prompt gets what is left of each step; whoever generates gets a token in every step."""
    world = full(kv_tokens=400, max_batch_tokens=8)
    world.submit(request("short", 4, 40))
    for _ in range(3):
        world.step()
    world.submit(request("long", 100, 4))
    for _ in range(12):
        before = len(world.events["short"])
        world.step()
        assert len(world.events["short"]) == before + 1
    assert world.loop.figures.largest_step == 8
    world.run([], most_steps=100)
    world.check_end()


def test_forks_share_the_prompt() -> None:
    world = full(kv_tokens=64)
    parent = request("0/0", 16, 4)
    for index in range(3):
        fork = None if index == 0 else parent.id
        world.submit(
            replace(parent, id=f"0/{index}", seed=index, fork_of=fork, params=SamplingParams(max_tokens=4, n=3))
        )
    most = 0
    while not world.loop.idle:
        world.step()
        most = max(most, world.ledger.pools[0].held)
    # The prompt's first three blocks are everybody's; its last, and the one of the answer, are each one's own.
    assert most <= 3 + 3 * 2
    world.check_end()
    assert [world.sequences[f"0/{index}"].reused for index in range(3)] == [0, 15, 15]


def test_a_late_fork_leaves_the_answer_of_the_first_alone() -> None:
    """The fork waits for a slot while the first answer fills blocks, and others find those blocks afterwards."""
    world = full(kv_tokens=256, max_batch=2, max_batch_tokens=16)
    first = replace(request("0/0", 6, 20), params=SamplingParams(max_tokens=20, n=2))
    world.submit(first)
    world.submit(request("other", 4, 14))
    world.submit(replace(first, id="0/1", seed=7, fork_of="0/0"))
    while not world.loop.idle:
        world.step()
    answer, _ = answer_alone(first)
    again = Request("again", first.prompt + tuple(answer[:12]), SamplingParams(max_tokens=6), 0, 6)
    world.run([Arrival(0, again, None)], most_steps=40)
    assert world.sequences["again"].reused == 16
    world.check_end()


def test_a_fork_that_gives_way_begins_anew() -> None:
    """Nothing is found again here, so its prompt is computed from the first token on."""
    world = World((LayerGroup(None, (0,), 1),), 40, Limits(4, 16, reuse_prefixes=False))
    first = replace(request("0/0", 10, 26), params=SamplingParams(max_tokens=26, n=3))
    arrivals = [Arrival(0, first, None)]
    arrivals += [Arrival(0, replace(first, id=f"0/{n}", seed=n, fork_of="0/0"), None) for n in (1, 2)]
    world.run(arrivals, most_steps=200)
    world.check_end()
    assert world.scheduler.preemptions > 0
    assert world.sequences["0/2"].reused == 0


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
        assert world.events[name][-1].finish is FinishReason.DEADLINE
    world.run([], most_steps=20)
    assert world.sequences["has time"].finish is FinishReason.LENGTH
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
        counts.append(len(world.events["a"]))
    assert counts == ([0, 1, 2, 3] if overlap else [1, 2, 3])
