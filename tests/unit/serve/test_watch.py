"""What a watch notes of a server: rates, events, and whether the gate holds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from brim.records.health import Health, Status
from brim.serve.watch.changes import QUIET_SECONDS, ChangeDetector
from brim.serve.watch.record import SAMPLE_COLUMNS, Counts, EventKind
from brim.serve.watch.watch import ServerWatch

pytest.importorskip("torch")
from brim.engine.pool.figures import EngineFigures
from brim.engine.schedule.figures import AdmissionFigures
from brim.engine.schedule.host_copies import PreemptionFigures

IDLE = EngineFigures(
    kv_tokens=160,
    kv_bytes=1600,
    weight_bytes=500,
    blocks_held=0,
    blocks_cached=0,
    blocks_free=10,
    running=0,
    waiting=0,
    preemptions=0,
    evicted_blocks=0,
    steps=0,
    computed=0,
    drawn=0,
    admission=AdmissionFigures(),
    preemption=PreemptionFigures(),
    speculation=None,
)
READY = Health(Status.READY, "")


@dataclass
class Clock:
    seconds: float = 100.0
    watch: ServerWatch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = ServerWatch(lambda: self.seconds, lambda: self.seconds + 1e9)

    def look(self, figures: EngineFigures, health: Health = READY, refused: int = 0, after: float = 1.0) -> None:
        self.seconds += after
        self.watch.sample(figures, health, refused)


def kinds(clock: Clock) -> list[str]:
    return [event["kind"] for event in clock.watch.report()["events"]]


def test_rates_are_those_of_the_last_seconds() -> None:
    clock = Clock()
    for number in range(8):
        clock.look(replace(IDLE, drawn=20 * number, computed=100 * number, running=3), after=2.0)
    found = clock.watch.report()
    assert found["throughput"] == {"drawn_tokens_per_second": 10.0, "computed_tokens_per_second": 50.0}
    rows = [dict(zip(SAMPLE_COLUMNS, row, strict=True)) for row in found["samples"]["rows"]]
    assert [row["drawn_per_second"] for row in rows] == [10.0] * 7
    assert rows[0]["running"] == 3


def test_a_reader_gets_what_is_new() -> None:
    clock = Clock()
    for _ in range(3):
        clock.look(IDLE)
    seen = clock.watch.report()["last_number"]
    clock.look(IDLE, replace(READY, rescues=1))
    found = clock.watch.report(after=seen)
    assert [event["kind"] for event in found["events"]] == ["rescue"]
    assert len(found["samples"]["rows"]) == 1
    assert clock.watch.report(found["last_number"])["events"] == []


def test_the_past_is_bounded() -> None:
    clock = Clock()
    for number in range(2000):
        clock.look(IDLE, replace(READY, rescues=number))
    found = clock.watch.report()
    assert (len(found["events"]), len(found["samples"]["rows"])) == (256, 600)


def test_the_gate_holds_until_nobody_waits() -> None:
    clock = Clock()
    clock.look(IDLE)
    for held in (1, 5, 5):  # the last time nothing was decided
        admission = AdmissionFigures(held_for_blocks=held, last_held="12 blocks are missing")
        clock.look(replace(IDLE, waiting=2, admission=admission))
        assert clock.watch.gate.holding
    clock.look(replace(IDLE, admission=admission))
    assert not clock.watch.gate.holding
    began, ended = (event for event in clock.watch.report()["events"] if event["kind"] == "gate")
    assert "12 blocks are missing" in began["text"]
    assert "after 3 s" in ended["text"]


def test_what_comes_often_is_told_once_in_a_while() -> None:
    now = [0.0]
    changes = ChangeDetector(lambda: now[0])
    told: list[int] = []
    for number in range(1, 26):
        now[0] = float(number)
        told += [one.count for one in changes.between(Counts(evicted_blocks=number * 3))]
    assert told == [3, 30, 30], "at 1, 11 and 21 s, with all that came together"
    assert QUIET_SECONDS == 10


def test_what_is_grave_is_told_at_once() -> None:
    clock = Clock()
    clock.look(IDLE)
    clock.watch.ended(evicted_tokens=40, status=500)
    clock.look(IDLE, Health(Status.DEGRADED, "a step ran out of memory", rescues=2, rebuilds=1), refused=3)
    assert kinds(clock) == ["state", "state", "rescue", "rescue", "failed", "refused", "rolled"]
    texts = [event["text"] for event in clock.watch.report()["events"]]
    assert texts[1] == "degraded: a step ran out of memory"
    assert texts[2] == "2 steps ran out of memory and were run again in parts"
    assert texts[4] == "a request failed"
    assert texts[6] == "conversations rolled: 40 tokens were dropped"
    assert set(kinds(clock)) <= {str(kind) for kind in EventKind}


def test_a_pool_that_was_rebuilt_counts_from_zero() -> None:
    clock = Clock()
    clock.look(replace(IDLE, evicted_blocks=50, drawn=70))
    clock.look(replace(IDLE, evicted_blocks=0, drawn=0))
    assert kinds(clock) == ["state", "evicted"]
    assert clock.watch.rates() == (0.0, 0.0)
