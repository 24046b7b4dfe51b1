"""Devices that can be leased, and what of each lease the driver already counts; NVML is a fake."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from brim.errors import InvalidRequest, UnknownDevice
from brim.records.lease import Lease
from brim.reserve import devices
from brim.reserve.devices import Budget, Gpu, find_leased, key_of, known_device
from brim.reserve.parts import available_bytes
from brim.reserve.processes import FIRST_PID_SPACE, identify, this_process
from tests.unit.probes.fake_nvml import GIB, FakeGpu, FakeNvml
from tests.unit.reserve.made import holder

L4 = "GPU-aa"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = FakeGpu("NVIDIA L4", L4, 24 * GIB, 4 * GIB)
    monkeypatch.setitem(
        sys.modules, "pynvml", FakeNvml([found], [FakeGpu("part", "MIG-bb", 10 * GIB, 0, part_of=found)])
    )
    return found


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process and its child: the pids of both."""
    script = "sleep 60 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        yield shell.pid, child
        subprocess.run(["kill", str(child)], check=True)
        shell.kill()


def lease_of(pid: int, held: int, *, generation: int = 1, measured: bool = False) -> Lease:
    return replace(holder(held, held, generation=generation), device=L4, holder=identify(pid), measured=measured)


@pytest.mark.usefixtures("gpu")
def test_devices_from_text() -> None:
    assert find_leased("0") == find_leased("cuda:0") == find_leased("auto") == find_leased(L4) == Gpu(L4, 24 * GIB)
    assert find_leased("MIG-bb") == Gpu("MIG-bb", 10 * GIB)
    assert find_leased("cpu:lab:1GiB") == Budget("cpu:lab", GIB)
    assert key_of("cpu:lab") == key_of("cpu:lab:2GiB") == "cpu:lab"
    assert key_of("0") == L4
    assert known_device("cpu:lab", [holder(5)]) == Budget("cpu:lab", holder(5).device_bytes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h100", "is no device of this machine; write 0, cuda:1, a UUID"),
        ("cpu", "is no device of this machine"),
        ("cpu:4GiB", "needs a name; write cpu:lab:4GiB"),
        ("cpu:a/../b:4GiB", "a budget's name is made of letters"),
        ("cpu:..:4GiB", "a budget's name is made of letters"),
        ("0,1", "is several GPUs"),
        ("", "is empty"),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_what_cannot_be_leased(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        find_leased(text)


def test_a_number_is_refused_where_it_may_be_another_gpu(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownDevice, match="gpu 1 is not there"):
        find_leased("1")
    other = FakeGpu("NVIDIA H100 80GB HBM3", "GPU-hh", 80 * GIB, 0)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([gpu, other]))
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    with pytest.raises(InvalidRequest, match=r"GPUs here differ.*write GPU-hh \(NVIDIA H100"):
        find_leased("1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert find_leased("1").key == "GPU-hh"
    other.divided = True
    with pytest.raises(InvalidRequest, match="is divided"):
        find_leased("1")


def test_what_a_process_and_its_children_use_is_not_counted_twice(
    gpu: FakeGpu, family: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "FIRST_PID_SPACE", this_process().pid_space)
    parent, child = family
    lease = lease_of(parent, 6 * GIB)
    device = Gpu(L4, 24 * GIB)
    assert available_bytes([lease], device.now([lease])) == 14 * GIB  # 20 free, none of the 6 taken yet
    gpu.processes, gpu.used = {child: 2 * GIB, 1: GIB}, 6 * GIB
    assert device.used_bytes([lease]) == {lease.name: 2 * GIB}
    assert available_bytes([lease], device.now([lease])) == 14 * GIB
    gpu.processes, gpu.used = {child: 6 * GIB, parent: GIB}, 11 * GIB
    assert available_bytes([lease], device.now([lease])) == 13 * GIB  # it took one more than it had promised


def test_a_child_with_a_lease_of_its_own_is_not_its_parents(gpu: FakeGpu, family: tuple[int, int]) -> None:
    parent, child = family
    gpu.processes = {parent: GIB, child: 2 * GIB}
    leases = [lease_of(parent, 4 * GIB), lease_of(child, 4 * GIB, generation=2)]
    assert Gpu(L4, 24 * GIB).used_bytes(leases) == {leases[0].name: GIB, leases[1].name: 2 * GIB}


def test_where_nvml_numbers_other_processes_a_holders_own_measure_counts(
    gpu: FakeGpu, family: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the numbers may be the host's."""
    monkeypatch.setattr(devices, "FIRST_PID_SPACE", FIRST_PID_SPACE + 1 + this_process().pid_space)
    measured, set_aside = lease_of(family[0], 2 * GIB, measured=True), lease_of(family[1], 3 * GIB, generation=2)
    gpu.processes, gpu.used = {family[1]: 3 * GIB}, 6 * GIB
    now = Gpu(L4, 24 * GIB).now([measured, set_aside])
    assert available_bytes([measured, set_aside], now) == 15 * GIB  # 18 free, and 3 that may be counted twice


def test_a_number_of_another_container_is_not_looked_up(gpu: FakeGpu, family: tuple[int, int]) -> None:
    """There the same number is another process."""
    lease = lease_of(family[0], 5)
    elsewhere = replace(lease, holder=replace(lease.holder, pid_space=1))
    gpu.processes = {family[0]: GIB}
    assert Gpu(L4, 24 * GIB).used_bytes([elsewhere]) == {}
    assert Budget("cpu:lab", 100).used_bytes([elsewhere]) == {}


def test_on_the_cpu_resident_memory_is_shown(family: tuple[int, int]) -> None:
    lease = lease_of(family[0], 5)
    assert Budget("cpu:lab", 100).used_bytes([lease])[lease.name] > 100_000
