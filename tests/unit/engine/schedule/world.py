"""A scheduler and a loop at work on a simulated device, and what is expected of them, in every step and at the end.

The device checks each query's blocks (`simulated_device`); the runner checks each plan; the end checks that every
request got the answer of an undisturbed run, and that every block was freed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from brim.engine.drafts.proposer import Proposer
from brim.engine.drafts.speculator import Speculator
from brim.engine.kv.geometry import LayerGroup, pool_shape
from brim.engine.kv.host import HostRoom
from brim.engine.kv.ledger import KvLedger
from brim.engine.loop import ServingLoop
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import FinishReason, Request
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.events import SequenceEvent
from brim.engine.schedule.host_copies import HostCopies
from brim.engine.schedule.plan import StepLimits
from brim.engine.schedule.scheduler import Scheduler
from brim.guard.admission import AdmissionSettings, AdmissionView, Decision, may_start
from brim.guard.preemption import PreemptionRates
from brim.guard.shares import EVERYBODY, ClientShare
from brim.guard.speculation import SpeculationSettings
from tests.unit.engine.schedule.checking_runner import CheckingRunner, Failed
from tests.unit.engine.schedule.simulated_device import VOCAB, next_token

STOP = 2
EAGER = AdmissionSettings(prior=1, watermark=0.0)  # answers are expected to be short, and preempted when they are not
WORST = AdmissionSettings("worst")
COPIES_ARE_CHEAP = PreemptionRates(out_bytes=10**9, back_bytes=10**9, prefill_tokens=1)
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
        limits: StepLimits,
        *,
        size: int = 4,
        overlap: bool = True,
        fails: Callable[[], bool] = lambda: False,
        admission: AdmissionSettings = EAGER,
        policy: Callable[[AdmissionView], Decision] = may_start,
        host_bytes: int = 0,
        proposer: Proposer | None = None,
        speculation: SpeculationSettings | None = None,
    ) -> None:
        shape = pool_shape(groups, kv_tokens, size, limits.max_batch, limits.max_batch_tokens)
        self.ledger = KvLedger(groups, shape)
        self.scheduler = Scheduler(self.ledger, limits, admission, policy)
        self.runner = CheckingRunner(self.ledger, limits, fails)
        if host_bytes:
            sizes = self.runner.device.host_sizes
            self.scheduler.keep_preempted(HostCopies(HostRoom(host_bytes), sizes, COPIES_ARE_CHEAP))
        self.speculator = proposer and Speculator(proposer, speculation or SpeculationSettings(), VOCAB)
        self.loop = ServingLoop(self.scheduler, self.runner, overlap, speculator=self.speculator)  # type: ignore[arg-type]
        self.failures = 0
        self.order: dict[Key, int] = {}
        self.events: dict[Key, list[SequenceEvent]] = {}
        self.sequences: dict[Key, Sequence] = {}
        self.started: list[Key] = []  # in the order in which they started for the first time

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
                assert self.standing() == before or self.speculator is not None  # which reads before it plans
        known = set(self.started)
        self.started += [one.request.key for one in self.scheduler.running if one.request.key not in known]
        self.check_order()
        self.check_sharing()
        self.check_claims()
        self.check_findings()
        copies = [one.host_copy for one in self.scheduler.waiting if one.host_copy is not None]
        assert self.scheduler.host_copies.room.problems(copies) == []

    def standing(self) -> Any:
        """Everything that a failed step must leave as it was."""
        names = (
            "slot",
            "computed",
            "unseen",
            "reused",
            "drawn_on_device",
            "preemptions",
            "tokens",
            "blocks",
            "host_copy",
        )
        waiting = sorted(self.scheduler.waiting, key=lambda one: one.request.share.name)  # each share in its order
        queues = (self.scheduler.running, waiting)
        return [
            [(one.request.key, *(deepcopy(getattr(one, name)) for name in names)) for one in queue] for queue in queues
        ]

    def check_order(self) -> None:
        """First come, first served by share and priority, unless they were passed; the last admitted is preempted.

        Only who was not in a step that failed stays when those that were lose their recurrent states.
        """
        if self.scheduler.limits.has_states and self.failures:
            return
        assert all(one.passed <= self.scheduler.admission.passes for one in self.sequences.values())
        if self.scheduler.counts.passes:
            return
        waiting = [sequence.request for sequence in self.scheduler.waiting]
        queue = [sequence.request for sequence in self.scheduler.running] + waiting
        for share in {one.share for one in queue}:
            priorities = [one.priority for one in waiting if one.share == share]
            assert priorities == sorted(priorities, reverse=True)
        for share, priority in {(one.share, one.priority) for one in queue}:
            places = [self.order[one.key] for one in queue if (one.share, one.priority) == (share, priority)]
            assert places == sorted(places)

    def check_sharing(self) -> None:
        """Every held block is counted once: with the request that it belongs to, or as a common one."""
        number = self.ledger.unwindowed
        if number is not None:
            held = [one.blocks for one in self.scheduler.running if one.blocks is not None]
            owned = sum(len(blocks.tables[number]) - blocks.common for blocks in held)
            assert owned + len(self.ledger.commons) == self.ledger.pools[number].held

    def check_claims(self) -> None:
        """The forecast of an answer is what it would be now; guesses are made once, and not looked at."""
        forecast = self.scheduler.forecast
        forecast._bring_up_to_date()
        assert {one.slot for one in self.scheduler.running} == set(forecast._running)
        assert len(forecast._future) == len(forecast._running)
        for slot, one in forecast._running.items():
            if one.drawn_on_device and self.scheduler.admission.mode == "worst":
                assert forecast._future.get(slot) == forecast._running_claim(one)

    def check_findings(self) -> None:
        """What is kept of a waiting request's blocks is what is in the pools."""
        for one in self.scheduler.waiting:
            if one.finding is not None:
                kept = self.ledger.still_found(one.finding, len(one.finding))
                fresh = self.ledger.find(one.digests[: len(one.finding)])
                assert kept is not None
                assert [blocks.tolist() for blocks in kept.blocks] == [blocks.tolist() for blocks in fresh.blocks]

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
        assert self.scheduler.host_copies.room.held_bytes == 0
        assert not self.ledger.outgoing
        slots = self.scheduler.batch.free_slots
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
def worlds(
    draw: st.DrawFn,
    admissions: AdmissionSettings | None = None,
    failing_rates: tuple[float, ...] | None = None,
    host_bytes: tuple[int, ...] = (0, 256, 10**6),
    speculates: bool = False,
) -> tuple[World, list[Arrival], int]:
    size = draw(st.sampled_from([1, 2, 4]))
    windows = draw(st.sampled_from([(None,), (None,), (None, 5), (3,), (None, 9, 2)]))
    groups = tuple(LayerGroup(window, (number,), 1) for number, window in enumerate(windows))
    max_batch = draw(st.integers(1, 5))
    states = draw(st.sampled_from([False, False, True]))
    reuse = not states and draw(st.booleans())
    drafted = draw(st.integers(1, max_batch)) if speculates else 0
    most = draw(st.integers(max_batch, 12))
    limits = StepLimits(max_batch, most, reuse_prefixes=reuse, has_states=states, max_drafted=drafted)
    longest = draw(st.integers(2, 40))
    kv_tokens = longest + draw(st.sampled_from([0, 0, size, longest // 2, 40]))
    # With recurrent layers each failure begins all texts of the step again.
    usual = (0.0, 0.0, 0.01, 0.02) if states else (0.0, 0.0, 0.15, 0.4)
    failing = draw(st.sampled_from(usual if failing_rates is None else failing_rates))
    numbers = random.Random(draw(st.integers(0, 1000)))
    fails = lambda: numbers.random() < failing  # noqa: E731
    if admissions is None:
        passes = draw(st.sampled_from([0, 1, 32]))
        admission = replace(draw(st.sampled_from([EAGER, EAGER, WORST, AdmissionSettings()])), passes=passes)
    else:
        admission = admissions
    world = World(
        groups,
        kv_tokens,
        limits,
        size=size,
        overlap=draw(st.booleans()),
        fails=fails,
        admission=admission,
        host_bytes=draw(st.sampled_from(host_bytes)),
        proposer=Guesses(numbers, draw(st.sampled_from([0.3, 0.8, 1.0]))) if drafted else None,
        speculation=SpeculationSettings(max(1, drafted), 1.0, depth=draw(st.integers(1, 5)) if drafted else 1),
    )
    arrivals: list[Arrival] = []
    seeds = st.integers(0, 2)
    shares = st.sampled_from(
        draw(st.sampled_from([(EVERYBODY,), (EVERYBODY, ClientShare("a"), ClientShare("b", 4.0))]))
    )
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
        first = Request(str(number), prompt, params, draw(seeds), most, stops, share=draw(shares))
        step = draw(st.integers(0, 12))
        for index in range(count):
            request = replace(first, index=index, seed=first.seed + index)
            cancelled = draw(st.one_of(st.none(), st.none(), st.none(), st.integers(step, step + 20)))
            arrivals.append(Arrival(step, request, cancelled))
    return world, arrivals, longest


class Guesses:
    """Drafts that are right some of the time."""

    def __init__(self, numbers: random.Random, right: float) -> None:
        self._numbers = numbers
        self._right = right

    def is_predicted(self, sequence: Sequence) -> bool:
        return False

    def has_one(self, sequence: Sequence) -> bool:
        return True

    def propose(self, depths: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        return {sequence: self._draft(sequence, depth) for sequence, depth in depths.items()}

    def _draft(self, sequence: Sequence, depth: int) -> tuple[int, ...]:
        text = list(sequence.tokens)
        for _ in range(self._numbers.randrange(depth + 1)):
            token = next_token(text, sequence.request.seed)
            text.append(token if self._numbers.random() < self._right else (token + 1) % VOCAB)
        return tuple(text[len(sequence.tokens) :])

    def forget(self, sequence: Sequence) -> None:
        pass


def full(kv_tokens: int, max_batch: int = 4, max_batch_tokens: int = 16, **others: Any) -> World:
    return World((LayerGroup(None, (0,), 1),), kv_tokens, StepLimits(max_batch, max_batch_tokens), **others)


def request(name: str, prompt: int, most: int, seed: int = 0, **others: Any) -> Request:
    tokens = tuple(random.Random(name).randrange(VOCAB) for _ in range(prompt))
    return Request(name, tokens, SamplingParams(max_tokens=most), seed, most, **others)
