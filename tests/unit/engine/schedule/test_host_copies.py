"""Preempted requests whose blocks are kept in host memory, on a simulated device."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brim.engine.kv.geometry import KvShape, LayerGroup
from brim.engine.kv.host import HostCopy
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.audit import scheduler_problems
from brim.engine.schedule.candidate import from_host
from brim.engine.schedule.plan import StepLimits
from brim.guard.preemption import PreemptionRates
from tests.unit.engine.schedule.world import Arrival, World, full, request
from tests.unit.engine.stopping import stopped_at

AMPLE = 10**6
KINDS: dict[str, tuple[tuple[int | None, ...], bool, bool]] = {  # windows, recurrent states, prefix caching
    "full": ((None,), False, False),
    "full, prefixes": ((None,), False, True),
    "windows": ((None, 9, 2), False, True),
    "only windows": ((7,), False, False),
    "hybrid": ((None,), True, False),
}


def world_of(kind: str, host_bytes: int, kv_tokens: int = 40, **others: Any) -> World:
    windows, states, reuse = KINDS[kind]
    groups = tuple(LayerGroup(window, (number,), 1) for number, window in enumerate(windows))
    limits = StepLimits(4, 16, reuse_prefixes=reuse, has_states=states)
    return World(groups, kv_tokens, limits, host_bytes=host_bytes, **others)


def arrivals_of(numbers: random.Random, count: int = 5) -> list[Arrival]:
    return [
        Arrival(numbers.randrange(4), request(f"{numbers.random()}", numbers.randrange(1, 12), 24), None)
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("overlap", [True, False])
def test_nothing_is_computed_twice_where_everything_is_kept(kind: str, overlap: bool) -> None:
    copied = 0
    for seed in range(8):
        world = world_of(kind, AMPLE, overlap=overlap)
        arrivals = arrivals_of(random.Random(f"{kind} {seed}"))
        world.run(arrivals, most_steps=400)
        world.check_end()
        figures = world.scheduler.host_copies.figures
        assert (figures.recomputed, figures.dropped, figures.held_bytes) == (0, 0, 0)
        # The last token of an answer is drawn, and not computed.
        assert world.runner.computed == sum(len(one.tokens) - 1 - one.reused for one in world.sequences.values())
        copied += figures.copied_back
    assert copied > 0


def failing(numbers: random.Random, rate: float) -> Callable[[], bool]:
    return lambda: numbers.random() < rate


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_same_with_little_room_cancellations_and_failures(kind: str) -> None:
    totals = {"copied_back": 0, "recomputed": 0, "dropped": 0}
    for seed in range(20):
        numbers = random.Random(f"{kind} {seed}")
        world = world_of(
            kind, numbers.choice([64, 128, 256]), fails=failing(numbers, 0.01 if kind == "hybrid" else 0.15)
        )
        arrivals = [replace(one, cancelled_at=numbers.choice([None, None, 25])) for one in arrivals_of(numbers, 6)]
        world.run(arrivals, most_steps=2000)
        world.check_end()
        for name in totals:
            totals[name] += getattr(world.scheduler.host_copies.figures, name)
    assert min(totals.values()) > 0, totals


def preempted(world: World) -> str:
    """Two requests run until the second has been preempted and its blocks are kept; its name."""
    for name in ("a", "b"):
        world.submit(request(name, 8, 24))
    for _ in range(60):
        if world.scheduler.host_copies.room.held_bytes:
            return "b"
        world.step()
    raise AssertionError("nobody was preempted")


def test_a_copy_is_freed_as_soon_as_its_request_ends() -> None:
    world = full(kv_tokens=40, host_bytes=AMPLE)
    name = preempted(world)
    assert world.sequences[name, 0].host_copy is not None
    world.cancel((name, 0))
    assert world.scheduler.host_copies.room.held_bytes == 0
    assert not world.ledger.outgoing
    assert world.scheduler.host_copies.figures.dropped == 1
    while not world.loop.idle:
        world.step()
    world.check_end()


def test_a_step_that_fails_leaves_the_copy_where_it_is() -> None:
    """The step that was to copy it back failed: what is in host memory is copied back by the next one."""
    fails: list[bool] = []
    world = full(kv_tokens=40, host_bytes=AMPLE, fails=lambda: bool(fails and fails.pop()))
    name = preempted(world)
    world.cancel(("a", 0))
    copy = world.sequences[name, 0].host_copy
    while world.sequences[name, 0].slot is None:
        fails.append(True)
        world.step()
        assert world.sequences[name, 0].host_copy is copy, "as it was"
        world.step()
    assert world.failures > 0
    assert world.sequences[name, 0].host_copy is None
    while not world.loop.idle:
        world.step()
    world.check_end()
    assert world.scheduler.host_copies.figures.copied_back == 1


def test_a_pool_that_is_built_anew_drops_all_copies() -> None:
    world = full(kv_tokens=40, host_bytes=AMPLE)
    name = preempted(world)
    world.loop.read_all()
    shape = KvShape(40, world.ledger.block_size, tuple(pool.blocks for pool in world.ledger.pools))
    world.scheduler.restart(KvLedger(world.ledger.groups, shape))
    assert world.sequences[name, 0].host_copy is None
    assert world.scheduler.host_copies.room.held_bytes == 0


def test_what_is_cheaper_to_compute_is_not_copied() -> None:
    world = full(kv_tokens=40, host_bytes=AMPLE)
    world.scheduler.host_copies.rates = PreemptionRates(out_bytes=1, back_bytes=1, prefill_tokens=10**6)
    world.run([Arrival(0, request(name, 8, 24), None) for name in ("a", "b", "c")], most_steps=200)
    world.check_end()
    figures = world.scheduler.host_copies.figures
    assert (figures.kept, figures.recomputed) == (0, world.scheduler.preemptions)
    assert figures.recomputed > 0
    assert "tokens computed in" in figures.last_recomputed


def test_blocks_that_are_found_by_content_are_not_copied_back() -> None:
    """Both begin alike: the first still holds the beginning when the second comes back."""
    world = full(kv_tokens=56, host_bytes=AMPLE)
    first = request("a", 16, 30)
    world.submit(first)
    for _ in range(3):
        world.step()
    world.submit(replace(first, id="b", seed=1))
    while not world.loop.idle:
        world.step()
    world.check_end()
    figures = world.scheduler.host_copies.figures
    assert figures.copied_back > 0
    assert figures.back_bytes < figures.out_bytes


def test_a_copy_is_found_by_what_its_images_show() -> None:
    """An answer that forked from another knows no digests when it is preempted: they are made when it comes back."""
    copy = HostCopy(place=0, bytes=64, tokens=8, reused=0, columns=(range(2),))
    texts = [
        Sequence(one, list(one.prompt)) for one in (request("a", 8, 4, marks=((2, it),)) for it in (b"cat", b"dog"))
    ]
    cat, dog = (from_host(text, copy, full(kv_tokens=64).ledger, reuse=True).digests for text in texts)
    assert len(cat) == len(dog) == 2
    assert set(cat).isdisjoint(dog)


def about_to_come_back() -> World:
    """The next step brings a request back whose beginning another one has left in the prefix cache."""
    world = world_of("windows", AMPLE, kv_tokens=44)
    first = request("a", 9, 24)
    world.submit(first)
    for _ in range(3):
        world.step()
    world.submit(replace(first, id="b", seed=1))
    while not world.scheduler.host_copies.room.held_bytes:
        world.step()
    world.cancel(("a", 0))
    world.loop.read_all()
    return world


def test_planning_that_stops_at_any_call_leaves_nothing_behind() -> None:
    for number in range(1, 400):
        world = about_to_come_back()
        copy = world.sequences["b", 0].host_copy
        stopped = stopped_at(number, world.scheduler.plan, spared=frozenset({"_take_back"}))
        if not stopped:
            assert number > 100
            assert world.sequences["b", 0].slot is not None, "the step that is looked at brings it back"
            return
        assert world.sequences["b", 0].host_copy is copy
        assert (world.ledger.returning, world.ledger.reserving) == ({}, False)
        assert scheduler_problems(world.scheduler) == []
    raise AssertionError("planning does not come to an end")


def test_a_preemption_that_stops_at_any_call_is_finished() -> None:
    for number in range(1, 400):
        world = full(kv_tokens=40, host_bytes=AMPLE)
        for name in ("a", "b"):
            world.submit(request(name, 8, 24))
        while world.ledger.pools[0].available or world.sequences["a", 0].computed % world.ledger.block_size:
            world.step()
        if not stopped_at(number, world.scheduler.plan, spared=frozenset({"_take_back"})):
            assert world.scheduler.preemptions == 1
            return
        assert scheduler_problems(world.scheduler) == []
        while not world.loop.idle:
            world.step()
        world.check_end()
    raise AssertionError("planning does not come to an end")
