"""The barrier and the parts of sizers, in threads of one process; `test_lease_startups` has real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.errors import DoesNotFit, InvalidRequest, NeighboursLate
from brim.fit.leased import LeasedProbe
from brim.records.lease import Expected, LeaseState, SizeWish
from brim.records.memory import MemoryReading
from brim.records.progress import Stage
from brim.reserve import devices
from brim.reserve.devices import Budget, Gpu
from brim.reserve.hold import OwnLease, hold
from brim.reserve.ledger import Ledger
from brim.reserve.processes import identify, this_process
from brim.reserve.sizing import Sizer, sizing
from brim.units import GIB, MIB
from tests.unit.probes.fake_nvml import FakeGpu, FakeNvml
from tests.unit.reserve.made import mine

LAB = Budget("cpu:lab", 1000 * MIB)
FULL = MemoryReading(LAB.total_bytes, 0, 0, 0, 0, 0, 0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path / "leases"))
    return tmp_path / "leases"


def holding(size: int, **options: Any) -> Any:
    return hold(gpu=f"{LAB.key}:{LAB.total_bytes}", bytes=size * MIB, **options)


def part(sizer: Sizer) -> int:
    return sizer.part.promised_bytes // MIB


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("nothing happened for 30 s")


@contextmanager
def another_process() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_sizer_waits_for_who_is_starting_and_takes_the_rest_of_what_they_hold(folder: Path) -> None:
    told: list[str] = []

    def size() -> tuple[int, LeaseState]:
        with sizing(LAB, told=lambda stage: told.append(stage.title)) as sizer:
            return part(sizer), sizer.lease.state

    with ThreadPoolExecutor() as pool, holding(600, role="tower", starting=True) as tower:
        found: Future[Any] = pool.submit(size)
        until(lambda: bool(told))
        assert not found.done()
        tower.hold(250 * MIB)
        assert found.result(30) == (750, LeaseState.STARTING)
    assert told[0] == str(Stage("neighbours", f"waiting for tower (pid {os.getpid()})"))
    with Ledger(folder, LAB.key).opened() as page:
        assert page.leases == ()


def test_the_order_does_not_matter_where_neighbours_are_expected() -> None:
    decided = threading.Event()

    def size() -> int:
        with sizing(LAB, expected=Expected(3, ("tower", "tower", "embedder")), wait_seconds=60) as sizer:
            decided.set()
            return part(sizer)

    with ThreadPoolExecutor() as pool, ExitStack() as held:
        found = pool.submit(size)
        leases: list[OwnLease] = []
        for role in ("tower", "embedder", "tower"):
            assert not decided.is_set()
            leases.append(held.enter_context(holding(200, role=role, starting=True)))
        for lease in leases:
            assert not decided.is_set()
            lease.hold(100 * MIB)
        assert found.result(60) == 700


@pytest.mark.parametrize(
    ("shares", "parts"),
    [
        ((SizeWish(), SizeWish()), (400, 400)),
        ((SizeWish(fraction=0.25), SizeWish(fraction=0.75)), (200, 600)),
        ((SizeWish(fraction=0.25), SizeWish()), (200, 600)),
        ((SizeWish(), SizeWish(fraction=0.25)), (600, 200)),
        ((SizeWish(bytes=300 * MIB), SizeWish()), (300, 500)),
        ((SizeWish(), SizeWish(bytes=300 * MIB)), (500, 300)),
    ],
)
def test_two_sizers_divide_what_the_holders_leave(shares: tuple[SizeWish, SizeWish], parts: tuple[int, int]) -> None:
    """Both are there before the first decides; the second sizes itself when the first holds, and not before."""
    first_holds = threading.Event()

    def size(number: int) -> int:
        with sizing(LAB, role=f"llm-{number}", share=shares[number], expected=Expected(2), wait_seconds=60) as sizer:
            assert first_holds.is_set() == bool(number)
            first_holds.set()
            sizer.hold(replace(FULL, reserved_bytes=part(sizer) * MIB, peak_reserved_bytes=part(sizer) * MIB))
            everybody_has_sized.wait(60)
            return part(sizer)

    everybody_has_sized = threading.Barrier(2)
    with ThreadPoolExecutor() as pool, holding(200):
        found = [pool.submit(size, 0)]
        ledger = Ledger(Path(os.environ["BRIM_LEASES"]), LAB.key)

        def first_is_there() -> bool:
            with ledger.opened() as page:
                return any(lease.role == "llm-0" for lease in page.leases)

        until(first_is_there)
        found.append(pool.submit(size, 1))
        assert tuple(one.result(60) for one in found) == parts


def test_what_a_sizer_has_started_itself_is_waited_for_after_it_has_loaded_and_others_before() -> None:
    loaded = replace(FULL, reserved_bytes=300 * MIB)
    with holding(600, role="tower", starting=True) as tower:
        with sizing(LAB, started=("tower",), wait_seconds=0.1) as sizer:
            assert not sizer.is_decided
            with pytest.raises(NeighboursLate, match="tower"):
                sizer.decide(loaded)
            tower.hold(500 * MIB)
            sizer.decide(loaded)
            assert part(sizer) == 500
        with sizing(LAB, started=("tower",)) as sizer:
            too_much = (
                r"no more than 500.0 MiB of cpu:lab .* is left for llm, which has loaded 501.0 MiB: tower .* holds"
            )
            with pytest.raises(DoesNotFit, match=too_much):
                sizer.decide(replace(FULL, reserved_bytes=501 * MIB))
    with (
        holding(100, role="embedder", starting=True),
        pytest.raises(NeighboursLate, match="embedder"),
        sizing(LAB, started=("tower",), wait_seconds=0.1),
    ):
        pass


@pytest.mark.parametrize("process_bytes", [3 * GIB, None])
def test_on_a_gpu_what_was_loaded_before_is_part_of_the_part(
    monkeypatch: pytest.MonkeyPatch, process_bytes: int | None
) -> None:
    card = FakeGpu("NVIDIA L4", "GPU-aa", 24 * GIB, 3 * GIB)  # two of weights, and a context
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([card]))
    loaded = MemoryReading(24 * GIB, 21 * GIB, 2 * GIB, 2 * GIB, 2 * GIB, 2 * GIB, GIB, process_bytes)
    with (
        sizing(Gpu("GPU-aa", 24 * GIB), share=SizeWish(fraction=0.5), started=("tower",)) as sizer,
        hold(gpu="GPU-aa", bytes=4 * GIB, role="tower"),
    ):
        sizer.decide(loaded)
        assert sizer.part.promised_bytes == 10 * GIB
        card.used = 6 * GIB
        grown = replace(loaded, free_bytes=18 * GIB, reserved_bytes=5 * GIB)
        if process_bytes is not None:
            grown = replace(grown, process_bytes=6 * GIB)
        assert sizer.seen(grown).free_bytes == 4 * GIB  # of its ten it has six


def test_between_deciding_and_holding_a_part_is_promised() -> None:
    with sizing(LAB, share=SizeWish(fraction=0.6)) as sizer:
        with pytest.raises(DoesNotFit, match=r"llm .* promised 600.0 MiB"), holding(401):
            pass
        sizer.hold(replace(FULL, reserved_bytes=300 * MIB, peak_reserved_bytes=500 * MIB))
        assert sizer.lease.held_bytes == 500 * MIB  # the high-water mark counts
        with holding(500):
            assert "holder" in sizer.note()


def test_who_is_late_is_named() -> None:
    late, wanted = pytest.raises(NeighboursLate), Expected(3, ("asr",))
    with holding(10, role="embedder"), holding(10, role="tower", starting=True), late as caught:
        sizing(LAB, expected=wanted, wait_seconds=0.05).__enter__()
    assert str(caught.value) == (
        f"wait-neighbours: after 0.05 s these are not ready on cpu:lab: tower (pid {os.getpid()}), asr (not started), "
        "1 more (not started); start or end them, or wait longer"
    )


def test_who_is_suspended_is_named_and_still_waited_for(folder: Path) -> None:
    with another_process() as process:
        with Ledger(folder, LAB.key).opened() as page:
            _, mark = page.add(replace(mine(10 * MIB), holder=identify(process.pid)))
            mark.end()  # that of this process
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        suspended = rf"tower \(pid {process.pid}\); suspended: tower \(pid {process.pid}\)"
        with pytest.raises(NeighboursLate, match=suspended), sizing(LAB, wait_seconds=0.05):
            pass
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with sizing(LAB, wait_seconds=30) as sizer:
            assert part(sizer) == 1000  # it died between promise and hold


def test_what_cannot_be_shared() -> None:
    with sizing(LAB, role="first", share=SizeWish(fraction=0.7)):
        refused = r"together these are 1.1 of cpu:lab \(first .* 0.7, llm .* 0.4\)"
        with pytest.raises(InvalidRequest, match=refused), sizing(LAB, share=SizeWish(fraction=0.4)):
            pass
        with pytest.raises(DoesNotFit, match=r"shortfall is 101.0 MiB"), sizing(LAB, share=SizeWish(bytes=401 * MIB)):
            pass
    refused = r"nothing of cpu:lab \(1000.0 MiB\) is left for llm: holder"
    with holding(1000), pytest.raises(DoesNotFit, match=refused), sizing(LAB):
        pass


class Reader:
    """A probe that reads what it is told to."""

    def __init__(self, reading: MemoryReading) -> None:
        self.now = reading

    def reading(self) -> MemoryReading:
        return self.now

    def reset_peak(self) -> None: ...

    def hold_canary(self, canary_bytes: int) -> None: ...

    def largest_held(self, count: int) -> tuple[str, ...]:
        return ()


def test_on_the_cpu_everything_beyond_the_part_is_the_neighbours() -> None:
    with holding(300), sizing(LAB) as sizer:
        probe = LeasedProbe(Reader(MemoryReading(700, 500, 200, 200, 200, 200, 0)), sizer)
        assert probe.reading() == MemoryReading(1000 * MIB, 500, 200, 200, 200, 200, 300 * MIB)


def test_on_a_gpu_a_promise_is_not_free_and_what_is_taken_of_it_is_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "FIRST_PID_SPACE", this_process().pid_space)
    card = FakeGpu("NVIDIA L4", "GPU-aa", 24 * GIB, 4 * GIB)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([card]))
    device = Gpu("GPU-aa", 24 * GIB)
    with another_process() as neighbour, hold(gpu="GPU-aa", bytes=6 * GIB) as lease:
        lease.change(lambda _: replace(lease.lease, holder=identify(neighbour.pid)))
        with sizing(device) as sizer:
            assert (sizer.part.promised_bytes, sizer.part.limited) == (14 * GIB, False)
            reader = Reader(MemoryReading(24 * GIB, 18 * GIB, GIB, 2 * GIB, GIB, 2 * GIB, 4 * GIB, 2 * GIB))
            probe = LeasedProbe(reader, sizer)
            before = probe.reading()
            assert (before.free_bytes, before.other_bytes) == (12 * GIB, 10 * GIB)
            card.processes, card.used = {neighbour.pid: 5 * GIB}, 9 * GIB
            reader.now = replace(reader.now, free_bytes=13 * GIB, other_bytes=9 * GIB)
            assert probe.reading() == before  # five of the six were taken: the sum stays
            sizer.hold(replace(reader.now, peak_reserved_bytes=3 * GIB))
            assert sizer.lease.held_bytes == 3 * GIB


def test_on_a_gpu_a_share_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeGpu("NVIDIA L4", "GPU-aa", 24 * GIB, 4 * GIB)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([card]))
    with sizing(Gpu("GPU-aa", 24 * GIB), share=SizeWish(fraction=0.5)) as sizer:
        assert sizer.part.promised_bytes == 10 * GIB
        known = MemoryReading(24 * GIB, 18 * GIB, GIB, GIB, GIB, GIB, 5 * GIB, 2 * GIB)
        assert sizer.seen(known).free_bytes == 8 * GIB  # two of the ten are taken
        unknown = replace(known, process_bytes=None)
        assert sizer.seen(unknown).free_bytes == 8 * GIB  # of 20 free, 18 are left, and the allocator has one
