"""Workers that hang, that cannot be started, and whose connections have high numbers."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brim.engine.encoders.pool import START_SECONDS, Encoders, Job  # noqa: E402
from brim.engine.encoders.process import EncoderProcess  # noqa: E402
from brim.engine.encoders.records import EncoderSource, TowerFacts  # noqa: E402
from brim.engine.encoders.wire import Message, Wire  # noqa: E402
from brim.engine.media.parts import MediaPart  # noqa: E402
from brim.errors import DeviceError  # noqa: E402
from tests.unit.engine.encoders.test_batches import facts, part  # noqa: E402

SOURCE = EncoderSource("a model", "dummy", "fp32", "cpu", 0, 256, 96, None, None, 1)


class Child:
    """A child without a process, which says what a test wants."""

    pid, on_device = 1, False

    def __init__(self, ours: socket.socket) -> None:
        self.wire = Wire(ours)
        self.facts: TowerFacts | None = None
        self.busy = False
        self.ended = False
        self.said: list[Message] = []

    def arrived(self) -> list[Message]:
        said, self.said = self.said, []
        return said

    def became_ready(self, message: Message) -> None:
        self.facts = facts(50)

    def encode(self, number: int, parts: Sequence[MediaPart]) -> None:
        self.busy = True

    def rows(self, count: int) -> Any:
        return torch.zeros(count, 8)

    def end(self) -> None:
        self.ended = True
        self.wire.close()


class Nursery:
    """Makes children, or fails to; and has the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made: list[Child] = []
        self.sockets: list[socket.socket] = []
        self.full = False

    def make(self, source: EncoderSource) -> Any:
        if self.full:
            raise OSError(24, "Too many open files")
        ours, theirs = socket.socketpair()
        self.sockets += ours, theirs
        self.made.append(Child(ours))
        return self.made[-1]

    def pool(self) -> Encoders:
        return Encoders([SOURCE], make=self.make, clock=lambda: self.now)

    def ready_pool(self) -> Encoders:
        pool = self.pool()
        self.made[0].said = [{"op": "ready"}]
        pool.start()
        return pool


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    for one in made.sockets:
        one.close()


def test_a_worker_that_does_not_answer_is_replaced_and_its_part_given_to_the_next(nursery: Nursery) -> None:
    pool = nursery.ready_pool()
    pool.submit(Job("a", part(4)))
    pool.poll()
    nursery.now += 59
    pool.poll()
    assert nursery.made[0].busy
    assert not nursery.made[0].ended
    nursery.now += 2
    pool.poll()
    assert nursery.made[0].ended
    assert "it has not answered for 61 s" in pool.problem
    assert not pool.refusal  # it was ready once: the next one may well be
    nursery.now += 1
    pool.poll()
    nursery.made[1].said = [{"op": "ready"}]
    pool.poll()
    nursery.made[1].said = [{"op": "done"}]
    done, failed = pool.poll()
    assert [job.key for one in done for job in one.jobs] == ["a"]
    assert not failed


def test_a_worker_whose_start_hangs_is_given_up_and_media_are_refused_in_the_meantime(nursery: Nursery) -> None:
    pool = nursery.ready_pool()
    nursery.made[0].said = [{"op": "cannot", "why": "it is tired", "memory": False}]
    pool.poll()
    nursery.now += 1
    pool.poll()
    pool.submit(Job("a", part(4)))
    nursery.now += START_SECONDS + 1
    _, failed = pool.poll()
    assert [one.job.key for one in failed] == ["a"]
    assert "it has not answered for 601 s" in failed[0].why
    assert pool.refusal


@pytest.mark.parametrize("memory", [False, True])
def test_media_fail_at_once_while_no_worker_can_be_started(nursery: Nursery, memory: bool) -> None:
    pool = nursery.ready_pool()
    nursery.made[0].said = [{"op": "no such message"}, {}]  # a child gone mad is ended
    pool.poll()
    assert not pool.refusal
    nursery.now += 1
    pool.poll()
    pool.submit(Job("a", part(4)))
    nursery.made[1].said = [{"op": "cannot", "why": "the model's folder is gone", "memory": memory}]
    _, failed = pool.poll()
    assert [one.why for one in failed] == ["encoder: the model's folder is gone"]
    assert pool.refusal == "encoder: the model's folder is gone"


def test_one_that_dies_whenever_it_is_ready_is_started_again_without_longer_and_longer_pauses(
    nursery: Nursery,
) -> None:
    pool = nursery.ready_pool()
    for number in range(20):
        nursery.made[-1].said = [{}]
        pool.poll()
        assert not pool.refusal
        nursery.now += 0.25
        pool.poll()
        assert len(nursery.made) == number + 2
        nursery.made[-1].said = [{"op": "ready"}]
        pool.poll()
    assert not pool.problem


def test_media_are_refused_from_a_failed_start_until_one_is_ready_and_never_wait_long(nursery: Nursery) -> None:
    pool = nursery.ready_pool()
    nursery.made[0].said = [{}]
    pool.poll()
    for _ in range(12):
        nursery.now += 10.0  # the longest pause
        pool.poll()
        nursery.made[-1].said = [{"op": "cannot", "why": "6.46 GiB are wanted, and 6.22 GiB left", "memory": True}]
        pool.poll()
        assert pool.refusal
        nursery.now += 10.0
        pool.poll()
        assert "6.22 GiB left" in pool.refusal  # also while the next one starts
        pool.submit(Job("a", part(4)))
        _, failed = pool.poll()
        assert [one.passing for one in failed] == [True]
    nursery.made[-1].said = [{"op": "ready"}]
    pool.poll()
    assert not pool.refusal


def test_a_process_that_cannot_be_made_is_tried_again(nursery: Nursery) -> None:
    pool = nursery.ready_pool()
    nursery.made[0].said = [{}]
    pool.poll()
    nursery.full, nursery.now = True, nursery.now + 1
    pool.poll()
    assert "Too many open files" in pool.refusal
    nursery.full, nursery.now = False, nursery.now + 1
    pool.poll()
    nursery.made[1].said = [{"op": "ready"}]
    pool.poll()
    assert not pool.problem
    nursery.full = True
    with pytest.raises(DeviceError, match="cannot be started"):
        nursery.pool().start()


def test_a_process_that_cannot_be_made_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="Cannot allocate memory"):
        EncoderProcess(SOURCE)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_connection_may_have_a_high_number(nursery: Nursery) -> None:
    """As that of a worker that was started again under thousands of clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2100:
        pytest.skip("descriptors have no high numbers here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2100), hard))
    try:
        pool = nursery.pool()
        ours, theirs = nursery.sockets
        os.dup2(ours.fileno(), 2050)
        with socket.socket(fileno=2050) as high:
            nursery.made[0].wire = Wire(high)
            theirs.sendall(b"x")
            pool.wait(60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
