"""The driver of rescues over the fake engine of `brim.testing`: answers do not change, every state is left again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from brim.errors import OutOfMemory
from brim.guard import OneRank, RescueDriver, RescuePolicy, driver
from brim.ports import LaunchBounds, Work
from brim.records.health import Status
from brim.testing import FakeRequest
from brim.units import KIB
from tests.unit.testing.adapters import Adapter, made

POLICY = RescuePolicy(usual_tokens=32, least_tokens=4, window_steps=16, calm_steps=6)
CANARY = 16 * KIB


def load(count: int = 5, answer: int = 6) -> list[FakeRequest]:
    return [FakeRequest(name, tuple(range(3 + 2 * name)), answer) for name in range(count)]


def served(adapter: Any, requests: list[FakeRequest], **parts: Any) -> RescueDriver:
    adapter.build(96)
    adapter.engine.device.hold_canary(CANARY)
    rescue = RescueDriver(adapter, POLICY, audited=adapter, **parts)
    rescue.watch(adapter.engine.device)
    for request in requests:
        adapter.engine.submit(request)
    return rescue


def run(adapter: Any, rescue: RescueDriver, before: Callable[[int], None] = lambda step: None) -> dict[Any, Any]:
    for step in range(5000):
        if not (adapter.engine.running or adapter.engine.waiting or rescue.under_way):
            return {name: (one.answer, bool(one.error)) for name, one in adapter.engine.finished.items()}
        before(step)
        rescue.advance()
    raise AssertionError("not served")


def undisturbed(requests: list[FakeRequest]) -> dict[Any, Any]:
    adapter = made(Adapter)
    return run(adapter, served(adapter, requests))


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(-1, 4), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_refusals_cost_nobody_and_a_request_that_cannot_run_ends_alone(
    refusals: list[int], culprit: int, answer: int
) -> None:
    """Any allocation of a call may be refused (0: none is), once, and one request is too large for the device."""
    wanted = undisturbed(load(answer=answer))
    adapter, requests = made(Adapter), load(answer=answer)
    if culprit >= 0:
        requests[culprit].step_bytes = 1 << 20
    rescue = served(adapter, requests)
    device = adapter.engine.device
    held = device.reading().allocated_bytes

    def refuse(step: int) -> None:
        device.allocations, device.fail_at = (
            0,
            (refusals[step] or None) if step % 4 == 0 and step < len(refusals) else None,
        )

    found = run(adapter, rescue, refuse)
    if culprit >= 0:
        assert found.pop(culprit) == ([], True)
        wanted.pop(culprit)
    assert found == wanted
    assert rescue.health.rebuilds == 0
    assert device.reading().allocated_bytes == held - (0 if rescue.health.canary_held else CANARY)
    assert adapter.problems() == []
    event(f"rescues: {min(3, rescue.health.rescues)}")


class Doubtful(Adapter):
    """Its first audit fails, and its first so many pools are refused."""

    refusals = 0
    audits = 0

    def problems(self) -> list[str]:
        self.audits += 1
        return ["a block too many"] if self.audits == 1 else super().problems()

    def rebuild(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OutOfMemory("no memory for a pool")
        super().rebuild()


@pytest.mark.parametrize("refusals", [0, 1, driver.MOST_REBUILDS - 1])
def test_a_failed_audit_rebuilds_the_pool_and_answers_do_not_change(
    refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PAUSE_SECONDS", 0)
    adapter = made(Doubtful)
    adapter.refusals = refusals
    rescue = served(adapter, load())
    device = adapter.engine.device
    reasons: list[str] = []

    def refuse(step: int) -> None:
        device.allocations, device.fail_at = 0, 1 if step == 2 else None
        reasons.append(rescue.health.reason)

    assert run(adapter, rescue, refuse) == undisturbed(load())
    assert (rescue.health.rescues, rescue.health.rebuilds, adapter.refusals) == (1, 1, 0)
    assert any("the KV pool was rebuilt: a block too many" in reason for reason in reasons)


def test_a_pool_that_is_refused_too_often_raises_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PAUSE_SECONDS", 0)
    adapter = made(Doubtful)
    adapter.refusals = driver.MOST_REBUILDS
    rescue = served(adapter, load())
    adapter.engine.device.allocations, adapter.engine.device.fail_at = 0, 1
    rescue.advance()
    adapter.engine.device.fail_at = None
    with pytest.raises(OutOfMemory, match="no memory for a pool"):
        run(adapter, rescue)
    assert run(adapter, rescue) == undisturbed(load())
    assert rescue.health.rebuilds == 1


class Unplanned(Adapter):
    """While `stuck`, it is out of memory before there is a step."""

    stuck = False

    def launch(self, bounds: LaunchBounds) -> None:
        if self.stuck:
            raise OutOfMemory("no memory for a plan")
        super().launch(bounds)


def test_steps_that_cannot_be_planned_become_the_error_of_the_call() -> None:
    adapter = made(Unplanned)
    rescue = served(adapter, load())
    adapter.stuck = True
    for _ in range(2 * driver.MOST_FRUITLESS):  # a rescue begins, and ends with nothing done
        rescue.advance()
    with pytest.raises(OutOfMemory, match="no memory for a plan"):
        rescue.advance()
    adapter.stuck = False
    assert run(adapter, rescue) == undisturbed(load())


@pytest.mark.parametrize("audited", [True, False])
def test_parts_that_cannot_be_planned_do_not_go_on_for_ever(audited: bool) -> None:
    adapter = made(Unplanned)
    rescue = served(adapter, load())
    if not audited:
        rescue = RescueDriver(adapter, POLICY)
    device = adapter.engine.device
    device.allocations, device.fail_at = 0, 1
    rescue.advance()
    device.fail_at, adapter.stuck = None, True
    with pytest.raises(OutOfMemory, match="no memory for a plan"):
        run(adapter, rescue)
    assert rescue.health.rebuilds == audited
    adapter.stuck = False
    assert run(adapter, rescue) == undisturbed(load())


def test_the_limit_of_a_step_falls_with_repeated_rescues_and_is_restored() -> None:
    adapter = made(Adapter)
    rescue = served(adapter, load(count=2, answer=60))
    device, limits, statuses = adapter.engine.device, [], []

    def refuse(step: int) -> None:
        device.allocations, device.fail_at = 0, 1 if step in (2, 6) else None
        limits.append(rescue.health.step_tokens)
        statuses.append(rescue.health.status)

    run(adapter, rescue, refuse)
    assert (limits[0], min(limits), limits[-1]) == (32, 16, 32)
    assert (statuses[0], statuses[8], statuses[-1]) == (Status.READY, Status.DEGRADED, Status.READY)
    assert rescue.calm


def test_the_canary_is_held_again_when_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "CANARY_STEPS", 4)
    adapter = made(Adapter)
    rescue = served(adapter, load(count=2, answer=60))
    device = adapter.engine.device
    ballast: list[Any] = []
    held: list[bool] = []

    def refuse(step: int) -> None:
        held.append(rescue.health.canary_held)
        device.allocations, device.fail_at = 0, 1 if step == 2 else None
        if step == 3:  # a neighbour takes what the canary would need
            ballast.append(device.allocate(device.reading().free_bytes - 8 * KIB))
        if step == 12:
            ballast.clear()

    run(adapter, rescue, refuse)
    assert held[0]
    assert not held[10]
    assert rescue.health.canary_held
    assert device.reading().allocated_bytes == 64 * KIB + adapter.price(96) + CANARY


@dataclass
class Graphs:
    """Graphs of which a replay failed, as many times as captures of them are refused."""

    refused: int
    graphs_failed: bool = True
    graphs_dropped: bool = False

    def drop_graphs(self) -> None:
        self.graphs_failed, self.graphs_dropped = False, True

    def capture_graphs(self) -> None:
        if self.refused:
            self.refused -= 1
            raise OutOfMemory("no memory for graphs")
        self.graphs_dropped = False


@pytest.mark.parametrize("refused", [0, 1])
def test_graphs_are_dropped_after_a_failed_replay_and_captured_when_all_is_calm(refused: int) -> None:
    adapter, graphs = made(Adapter), Graphs(refused)
    rescue = served(adapter, load(count=2, answer=60), graphs=graphs)
    device = adapter.engine.device

    def refuse(step: int) -> None:
        device.allocations, device.fail_at = 0, 1 if step == 2 else None

    run(adapter, rescue, refuse)
    assert rescue.calm
    assert (graphs.graphs_failed, graphs.graphs_dropped) == (False, bool(refused))


class OfTwo(OneRank):
    size = 2


def test_with_several_ranks_what_no_launch_raised_is_raised() -> None:
    adapter = made(Unplanned)
    rescue = served(adapter, load(), ranks=OfTwo())
    adapter.stuck = True
    with pytest.raises(OutOfMemory):
        rescue.advance()
    assert not rescue.under_way


def test_work_names_what_was_to_be_computed() -> None:
    adapter = made(Adapter)
    rescue = served(adapter, load(count=2))
    adapter.engine.device.allocations, adapter.engine.device.fail_at = 0, 1
    with pytest.raises(OutOfMemory):
        adapter.launch(LaunchBounds(32))
    assert adapter.undo() == (Work(0, 3), Work(1, 5))
    assert not rescue.under_way
