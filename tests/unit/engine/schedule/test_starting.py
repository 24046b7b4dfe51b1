"""Who starts when: the future of the batch, guesses that turn out wrong, and requests that pass others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from brim.engine.requests.request import FinishReason
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.forecast import BlockForecast
from brim.errors import InvalidRequest
from brim.guard.admission import AdmissionSettings, Cause
from tests.unit.engine.kv.test_prefix_matches import counted
from tests.unit.engine.schedule.world import EAGER, STOP, WORST, Arrival, World, full, request, worlds


@given(made=worlds(admissions=WORST))
@settings(max_examples=100, deadline=None)
def test_with_the_worst_case_nobody_is_preempted(made: tuple[World, list[Arrival], int]) -> None:
    world, arrivals, longest = made
    world.run(arrivals, most_steps=10 * (40 + (2 * longest + 4) * len(arrivals)))
    world.check_end()
    event(f"beside each other: {world.scheduler.counts.causes[Cause.BLOCKS] > 0}")
    if not (world.failures and world.scheduler.limits.has_states):
        assert world.scheduler.preemptions == 0


@given(made=st.sampled_from([0, 1, 3]).flatmap(lambda passes: worlds(admissions=replace(EAGER, passes=passes))))
@settings(max_examples=60, deadline=None)
def test_everybody_starts_within_a_bound(made: tuple[World, list[Arrival], int]) -> None:
    """Before a request starts, all of its share that came before it may have, and as many later ones as may pass it."""
    world, arrivals, longest = made
    world.run(arrivals, most_steps=10 * (40 + (2 * longest + 4) * len(arrivals)))
    allowed = world.scheduler.admission.passes
    share = {key: one.request.share for key, one in world.sequences.items()}
    for place, key in enumerate(world.started):
        before = [other for other in world.started[:place] if share[other] == share[key]]
        later = sum(world.order[other] > world.order[key] for other in before)
        assert later <= min(allowed, world.sequences[key].passed)
    event(f"passed: {world.scheduler.counts.passes > 0}")


def test_a_small_request_passes_one_that_waits_for_blocks_and_not_for_ever() -> None:
    world = full(kv_tokens=20 * 4, admission=replace(WORST, passes=2))
    world.submit(request("runs", 8, 33))  # 10 of 20 blocks, in the end
    world.step()
    world.submit(request("large", 56, 9))  # 16 blocks
    for number in range(4):
        world.submit(request(f"small {number}", 4, 5))  # 2 blocks
    while not world.loop.idle:
        world.step()
    world.check_end()
    order = [name for name, _ in world.started]
    assert order == ["runs", "small 0", "small 1", "large", "small 2", "small 3"]
    figures = world.scheduler.counts.figures
    assert (figures.passes, figures.started, figures.preemptions) == (2, 6, 0)
    assert figures.held_for_blocks > 0
    assert world.sequences["large", 0].passed == 2


def test_nobody_passes_a_request_that_waits_for_a_slot() -> None:
    world = full(kv_tokens=400, max_batch=1, admission=WORST)
    for name, most in (("a", 12), ("b", 12), ("c", 1)):
        world.submit(request(name, 4, most))
    while not world.loop.idle:
        world.step()
    assert [name for name, _ in world.started] == ["a", "b", "c"]
    assert world.scheduler.counts.figures.last_held == "all 1 slots are taken"


@pytest.mark.parametrize(("max_batch", "held_for"), [(1, Cause.SLOTS), (2, Cause.BLOCKS)])
def test_a_long_prompt_that_waits_costs_no_step_its_length(max_batch: int, held_for: Cause) -> None:
    """It is cached, 100 blocks of it. Another one runs, and there is no slot or no room for both."""
    world = full(kv_tokens=170 * 4, max_batch=max_batch, max_batch_tokens=512, admission=WORST)
    world.run([Arrival(0, long := request("long", 400, 1), None)], most_steps=20)
    world.submit(request("runs", 4, 280))
    world.step()
    world.submit(replace(long, id="again", max_tokens=200))
    world.step()
    world.check_findings = lambda: None  # type: ignore[method-assign]  # which looks everything up, to compare
    (lookups,) = counted(world.ledger)
    before = world.scheduler.counts.causes[held_for]
    for _ in range(40):
        world.step()
    assert world.scheduler.counts.causes[held_for] == before + 40
    assert lookups.lookups <= 10  # the other one publishes a block in every fourth step
    world.run([], most_steps=600)
    world.check_end()
    assert world.sequences["again", 0].reused == 396


def test_the_worst_waits_for_what_is_allowed_and_what_ends_early_makes_room_at_once() -> None:
    world = full(kv_tokens=20 * 4, admission=WORST)
    first = world.submit(request("first", 8, 60))
    world.submit(request("second", 8, 60))
    for _ in range(3):
        world.step()
    assert [one.request.id for one in world.scheduler.running] == ["first"]
    assert world.scheduler.counts.figures.last_held == (
        "pool 0: with the 17 blocks that it needs the batch would grow to 34, and 20 may be held"
    )
    world.scheduler.finish(first, FinishReason.CANCELLED)
    world.step()
    assert [one.request.id for one in world.scheduler.running] == ["second"]


def test_what_could_never_run_is_refused_at_once() -> None:
    world = full(kv_tokens=20 * 4)
    world.loop.submit(Sequence(fits := request("fits", 40, 41), list(fits.prompt)))
    with pytest.raises(InvalidRequest) as caught:
        world.loop.submit(Sequence(large := request("large", 40, 42), list(large.prompt)))
    assert str(caught.value) == (
        "max_tokens 42 after a prompt of 40 tokens: needs 21 blocks of pool 0, which has 20; lower it, shorten the "
        "prompt, or give the engine more kv_tokens"
    )
    assert [one.request.id for one in world.scheduler.waiting] == ["fits"]


def test_what_ends_before_another_has_grown_lets_both_run() -> None:
    """Each would need 15 of 20 blocks, but the first has ended when the second gets there."""
    world = full(kv_tokens=20 * 4, admission=WORST, max_batch_tokens=64)
    world.submit(request("first", 50, 10))
    for _ in range(2):
        world.step()
    world.submit(request("second", 5, 55))
    world.step()
    assert len(world.scheduler.running) == 2
    world.run([], most_steps=100)
    world.check_end()
    assert world.scheduler.preemptions == 0


def test_a_large_limit_does_not_shut_the_gate() -> None:
    """Answers may have 300 tokens and have a few: after some have ended, requests run beside each other."""
    admission = AdmissionSettings(prior=300, watermark=0.0)
    counts = []
    for mode in ("worst", "expected"):
        world = full(kv_tokens=400, max_batch=8, max_batch_tokens=64, admission=replace(admission, mode=mode))
        arrivals = [
            Arrival(0, replace(request(str(number), 8, 300), seed=number, stop_ids=frozenset({STOP})), None)
            for number in range(60)
        ]
        world.run(arrivals, most_steps=5000)
        world.check_end()
        counts.append(world.loop.figures.steps)
        if mode == "worst":
            assert world.scheduler.preemptions == 0
    worst, expected = counts
    assert expected < worst / 2


def test_a_wrong_guess_costs_a_preemption_and_no_answer() -> None:
    world = full(kv_tokens=40, admission=EAGER)
    world.run([Arrival(0, request(name, 8, 24), None) for name in ("a", "b", "c")], most_steps=200)
    world.check_end()
    assert world.scheduler.counts.figures.preemptions > 0


def test_what_is_kept_free_is_left_for_those_that_run() -> None:
    """Ten blocks each: two fill the pool, and the second waits where two blocks are to stay free."""
    both = full(kv_tokens=20 * 4, admission=AdmissionSettings(watermark=0.0))
    one = full(kv_tokens=20 * 4, admission=AdmissionSettings(watermark=0.1))
    for world, expected in ((both, 2), (one, 1)):
        for name in ("a", "b"):
            world.submit(request(name, 8, 33))
        world.step()
        assert len(world.scheduler.running) == expected
        world.run([], most_steps=200)
        world.check_end()
        assert world.scheduler.preemptions == 0
    assert one.scheduler.counts.causes[Cause.BLOCKS] > 0


def test_a_preemption_leaves_the_claims_of_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting all of them again takes a hundred times as long as a decision."""
    counted_anew: list[int] = []
    monkeypatch.setattr(BlockForecast, "_rebuild", lambda forecast: counted_anew.append(forecast._step))
    world = full(kv_tokens=40)
    world.run([Arrival(0, request(name, 8, 24), None) for name in ("a", "b", "c")], most_steps=200)
    world.check_end()
    assert world.scheduler.preemptions > 0
    assert counted_anew == []
