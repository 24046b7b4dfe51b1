"""Where requests go: by the prefix they share, by the forecast of the guard, and never where they cannot be served."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.guard.routing.policy import Fleet
from brim.guard.routing.router import MemoryRouter
from brim.records.health import Status
from brim.records.routing import (
    Forecast,
    PrefixSummary,
    ReplicaStatistics,
    Route,
    RouteRefusal,
    RouteRequest,
)

BLOCK = 16


def summary(*digests: int) -> PrefixSummary:
    return PrefixSummary(b"".join(one.to_bytes(8, "little") for one in digests))


def idle(number: int = 1, **changes: object) -> ReplicaStatistics:
    found = ReplicaStatistics(
        number=number,
        status=Status.READY,
        block_size=BLOCK,
        blocks=1000,
        free_blocks=1000,
        unused_blocks=1000,
        slots=8,
        running=0,
        waiting=0,
        waiting_blocks=0,
        inside=0,
        places=16,
        prefill_tokens_per_second=1000.0,
        step_seconds=0.02,
        forecast=(Forecast(0.0, 1000, 8),),
    )
    return replace(found, **changes)


def busy(seconds: float, **changes: object) -> ReplicaStatistics:
    """Full until then."""
    forecast = (Forecast(0.0, 0, 0), Forecast(seconds, 1000, 8))
    return idle(free_blocks=0, unused_blocks=0, running=8, inside=8, forecast=forecast, **changes)


def fleet(**replicas: ReplicaStatistics) -> Fleet:
    found = Fleet(room=2)
    for name, seen in replicas.items():
        found.put(name, seen)
    return found


CONVERSATION = tuple(number * 0x9E3779B97F4A7C15 % (1 << 64) for number in range(1, 41))
ASKED = RouteRequest(CONVERSATION, tokens=41 * BLOCK, blocks=50)


def chosen(found: Route | RouteRefusal) -> str:
    assert isinstance(found, Route), found
    return found.replicas[0]


def test_the_longest_prefix_wins() -> None:
    some, more = idle(summary=summary(*CONVERSATION[:20])), idle(summary=summary(*CONVERSATION[:36]))
    found = fleet(empty=idle(), some=some, more=more).choose(ASKED)
    assert found == Route(("more", "some", "empty"), 36, 0.0)


def test_a_wait_outweighs_a_prefix_that_is_computed_sooner() -> None:
    holder = busy(30.0, summary=summary(*CONVERSATION))
    assert chosen(fleet(holder=holder, empty=idle()).choose(ASKED)) == "empty"


def test_a_short_wait_does_not() -> None:
    holder = busy(0.2, summary=summary(*CONVERSATION))
    assert chosen(fleet(holder=holder, empty=idle()).choose(ASKED)) == "holder"


def test_where_all_wait_the_one_whose_blocks_free_first() -> None:
    assert chosen(fleet(late=busy(9.0), soon=busy(2.0), later=busy(30.0)).choose(ASKED)) == "soon"


def test_those_that_wait_already_come_first() -> None:
    forecast = (Forecast(0.0, 100, 1), Forecast(5.0, 500, 2), Forecast(50.0, 1000, 8))
    waits = idle(waiting=1, waiting_blocks=300, forecast=forecast)
    found = fleet(one=waits).choose(ASKED)
    assert isinstance(found, Route)
    assert found.wait_seconds == 5.0
    assert fleet(one=replace(waits, waiting_blocks=480)).choose(ASKED).wait_seconds == 50.0


def test_a_small_shared_prefix_does_not_outweigh_an_empty_replica() -> None:
    """A system prompt that all conversations begin with would send all of them to the first that had one."""
    holder = idle(summary=summary(*CONVERSATION[:2]), free_blocks=500, running=4, inside=4)
    assert chosen(fleet(holder=holder, empty=idle()).choose(ASKED)) == "empty"


def test_short_prompts_do_not_all_go_where_their_template_is_held() -> None:
    """All but a token of a prompt is found there, and computing the rest elsewhere takes less than a step."""
    asked = RouteRequest(CONVERSATION[:1], tokens=BLOCK + 1, blocks=3)
    holder = idle(summary=summary(*CONVERSATION[:1]), running=4, inside=4, prefill_tokens_per_second=5000.0)
    assert chosen(fleet(holder=holder, empty=idle()).choose(asked)) == "empty"


def test_one_that_has_not_run_a_step_says_nothing_of_how_long_one_takes() -> None:
    """On a slow machine a step outweighs the few tokens of a template, whatever a new replica would guess."""
    asked = RouteRequest(CONVERSATION[:1], tokens=BLOCK + 1, blocks=3)
    slow = {"prefill_tokens_per_second": 300.0, "step_seconds": 0.2}
    holder = idle(summary=summary(*CONVERSATION[:1]), running=4, inside=4, **slow)
    assert (
        chosen(fleet(holder=holder, new=idle(prefill_tokens_per_second=0.0, step_seconds=0.0)).choose(asked)) == "new"
    )


@pytest.mark.parametrize("rate", [0.0, 90.0])
def test_a_replica_that_has_computed_little_is_not_taken_for_a_slow_one(rate: float) -> None:
    """By a figure of its own it would get no request until all others are full, and never measure another."""
    worked = idle(prefill_tokens_per_second=30_000.0, running=1, inside=1, unused_blocks=900)
    assert chosen(fleet(worked=worked, new=idle(prefill_tokens_per_second=rate)).choose(ASKED)) == "new"


def test_degraded_replicas_come_last() -> None:
    limping = idle(status=Status.DEGRADED, summary=summary(*CONVERSATION))
    assert fleet(limping=limping, well=busy(20.0)).choose(ASKED).replicas == ("well", "limping")


def test_draining_ended_and_excluded_ones_get_nothing() -> None:
    others = {"draining": idle(draining=True), "ended": idle(status=Status.ENDED), "failed": idle()}
    asked = replace(ASKED, excluded=frozenset({"failed"}))
    assert isinstance(fleet(**others).choose(asked), RouteRefusal)
    assert fleet(**others, well=busy(3.0)).choose(asked).replicas == ("well",)


def test_refused_only_where_nobody_can_start_it_in_time() -> None:
    asked = replace(ASKED, patience_seconds=10.0)
    found = fleet(one=busy(25.0), two=busy(90.0)).choose(asked)
    assert found == RouteRefusal(15, "no replica can start it before 25 s, and it may wait 10 s")
    assert chosen(fleet(one=busy(25.0), two=busy(9.0)).choose(asked)) == "two"


def test_refused_where_all_queues_are_full() -> None:
    found = fleet(one=idle(inside=16), two=idle(inside=16)).choose(ASKED)
    assert found == RouteRefusal(1, "the queues of all 2 replicas are full")
    assert fleet().choose(ASKED) == RouteRefusal(60, "no replica is serving")


def test_a_replica_that_is_gone_is_not_chosen_and_its_column_is_used_again() -> None:
    found = fleet(one=idle(), two=busy(5.0))
    found.remove("one")
    assert found.choose(ASKED).replicas == ("two",)
    found.put("three", idle())
    assert found.choose(ASKED).replicas == ("three", "two")


# -- the state between decisions -----------------------------------------------------------------------------------


def test_what_was_sent_counts_until_a_report_counts_it() -> None:
    router = MemoryRouter(period_seconds=1.0)
    for name in ("one", "two"):
        router.reported(name, idle(), now=0.0)
    went = []
    for number in range(16):  # no report comes between them
        route = router.route(RouteRequest(tokens=160, blocks=12))
        went.append(chosen(route))
        router.sent(RouteRequest(tokens=160, blocks=12), went[-1], now=0.1, key=f"{number}")
    assert went.count("one") == went.count("two") == 8
    router.reported("one", idle(2), now=5.0)  # a report that is idle again: all of it has ended
    assert chosen(router.route(RouteRequest(tokens=160, blocks=12))) == "one"


def test_what_has_ended_counts_no_more() -> None:
    router = MemoryRouter()
    router.reported("one", idle(places=4), now=0.0)
    for number in range(20):  # more than there are places, one after the other, before any report
        route = router.route(RouteRequest(tokens=160, blocks=12, answers=3))
        assert isinstance(route, Route), route
        router.sent(RouteRequest(tokens=160, blocks=12, answers=3), "one", now=0.1, key=f"{number}")
        assert isinstance(router.route(RouteRequest(answers=3)), RouteRefusal)
        router.ended("one", f"{number}")


def test_a_conversation_goes_on_where_it_was_before_any_report() -> None:
    router = MemoryRouter()
    for name in ("one", "two", "three"):
        router.reported(name, idle(), now=0.0)
    first = RouteRequest(CONVERSATION[:30], tokens=31 * BLOCK, blocks=40)
    router.sent(first, "two", now=0.0, key="first")
    assert router.route(ASKED).replicas[0] == "two"
    assert router.route(ASKED).prefix_blocks == 30
    router.gone("two")
    assert router.route(ASKED).replicas[0] != "two"


def test_a_report_that_was_seen_changes_nothing() -> None:
    router = MemoryRouter()
    router.reported("one", idle(7), now=0.0)
    router.reported("one", busy(50.0, number=7), now=1.0)
    assert router.route(ASKED).wait_seconds == 0.0


# -- the same, said slowly -----------------------------------------------------------------------------------------


def slow_seconds(seen: ReplicaStatistics, asked: RouteRequest, rate: float, step: float) -> tuple[float, float]:
    """Wait, and seconds to the first token: the formula of the policy, for one replica."""
    held = {seen.summary.digests[i : i + 8] for i in range(0, len(seen.summary.digests), 8)}
    prefix = 0
    while prefix < len(asked.digests) and asked.digests[prefix].to_bytes(8, "little") in held:
        prefix += 1
    blocks = min(asked.blocks, seen.blocks) + seen.waiting_blocks
    slots = min(asked.answers, seen.slots) + seen.waiting
    enough = [one.seconds for one in seen.forecast if one.blocks >= blocks and one.slots >= slots]
    rounds = max(1, blocks / seen.blocks, slots / seen.slots)
    wait = enough[0] if enough else max(seen.forecast[-1].seconds, 0.05) * rounds
    load = min(1, max((seen.blocks - seen.free_blocks) / seen.blocks, seen.running / seen.slots))
    left = max(1, asked.tokens - prefix * seen.block_size)
    return wait, wait + (8 * step + left / rate) * (1 + load)


@st.composite
def replicas(draw: st.DrawFn) -> ReplicaStatistics:
    blocks = draw(st.integers(1, 400))
    free, slots = draw(st.integers(0, blocks)), draw(st.integers(1, 16))
    running = draw(st.integers(0, slots))
    forecast, left, room = [Forecast(0.0, free, slots - running)], blocks - free, running
    for seconds in sorted(draw(st.lists(st.floats(0.01, 100), max_size=7))):
        back, ended = draw(st.integers(0, left)), draw(st.integers(0, room))
        left, room = left - back, room - ended
        forecast.append(Forecast(seconds, forecast[-1].blocks + back, forecast[-1].slots + ended))
    held = draw(st.integers(0, len(CONVERSATION)))
    return ReplicaStatistics(
        number=1,
        status=draw(st.sampled_from(Status)),
        block_size=BLOCK,
        blocks=blocks,
        free_blocks=free,
        unused_blocks=draw(st.integers(0, free)),
        slots=slots,
        running=running,
        waiting=draw(st.integers(0, 20)),
        waiting_blocks=draw(st.integers(0, 400)),
        inside=running,
        places=draw(st.integers(1, 64)),
        prefill_tokens_per_second=draw(st.just(0.0) | st.floats(10, 1e5)),
        step_seconds=draw(st.just(0.0) | st.floats(1e-4, 10)),
        forecast=tuple(forecast),
        summary=summary(*CONVERSATION[:held]),
        draining=draw(st.booleans()),
    )


@given(
    st.lists(replicas(), max_size=12),
    st.integers(0, 40),
    st.integers(1, 500),
    st.floats(0.1, 200),
)
def test_no_replica_is_sooner_than_the_chosen_one(
    seen: list[ReplicaStatistics], depth: int, blocks: int, patience: float
) -> None:
    asked = RouteRequest(CONVERSATION[:depth], depth * BLOCK + 3, blocks, patience_seconds=patience)
    names = {f"replica {number}": one for number, one in enumerate(seen)}
    found = fleet(**names).choose(asked)
    usable = {
        name: one
        for name, one in names.items()
        if not one.draining and one.status is not Status.ENDED and one.inside + 1 <= one.places
    }
    rate = max((one.prefill_tokens_per_second for one in seen), default=0.0) or 2000.0
    step = min((one.step_seconds for one in seen if one.step_seconds), default=0.02)
    in_time = {name: one for name, one in usable.items() if slow_seconds(one, asked, rate, step)[0] <= patience}
    if isinstance(found, RouteRefusal):
        assert not in_time
        assert 1 <= found.retry_after_seconds <= 120
        return
    assert set(found.replicas) <= set(in_time)
    assert len(found.replicas) == min(4, len(in_time))
    best = names[found.replicas[0]]
    for one in in_time.values():
        if (one.status is Status.DEGRADED) == (best.status is Status.DEGRADED):
            assert slow_seconds(best, asked, rate, step)[1] <= slow_seconds(one, asked, rate, step)[1] * (1 + 1e-9)
        else:
            assert best.status is not Status.DEGRADED


def test_a_decision_costs_little_however_many_replicas_and_blocks() -> None:
    draw = random.Random(0)
    found = Fleet()
    long = tuple(draw.getrandbits(64) for _ in range(4000))  # a prompt of 64,000 tokens
    for number in range(1024):
        own = [draw.getrandbits(64) for _ in range(200)]
        found.put(f"replica {number}", idle(summary=summary(*own, *(long[:1800] if number == 700 else ()))))
    asked = RouteRequest(long, tokens=64_100, blocks=900)
    began = time.perf_counter()
    for _ in range(20):
        route = found.choose(asked)
    assert (time.perf_counter() - began) / 20 < 0.02  # measured: under a millisecond
    assert route.replicas[0] == "replica 700"
