"""The GPUs of a machine, with NVML made by hand and real leases."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from brim.monitor.machine import MemoryHolder, read_machine
from brim.record.writer import open_in_folder
from brim.reserve.hold import hold
from tests.unit.probes.fake_nvml import GIB, FakeGpu, FakeNvml

URL = "http://127.0.0.1:8000"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "leases"


def test_who_holds_what_on_each_card(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    first = FakeGpu("NVIDIA L4", "GPU-aa", 24 * GIB, 20 * GIB, processes={own: 6 * GIB, 2**22 + 1: 12 * GIB, 1: None})
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([first, FakeGpu("NVIDIA L4", "GPU-bb", 24 * GIB, 0)]))
    with hold(gpu="GPU-aa", bytes="4GiB", role="embedder"), hold(gpu="cpu:lab:4GiB", bytes="1GiB", role="tower"):
        found = read_machine(folder, tmp_path / "none", {URL: frozenset({2**22 + 1})})
    one, two = found.gpus
    assert (one.key, one.number, one.total_bytes, one.free_bytes) == ("GPU-aa", 0, 24 * GIB, 4 * GIB)
    assert one.holders == (
        MemoryHolder(2**22 + 1, "", 12 * GIB, server=URL),
        MemoryHolder(own, "embedder", 6 * GIB, 4 * GIB, 4 * GIB, "held"),
    )
    assert (two.holders, two.free_bytes) == ((), 24 * GIB)
    assert [(device.key, [holder.name for holder in device.holders]) for device in found.budgets] == [
        ("cpu:lab", ["tower"])
    ]
    assert found.free_beside(URL) == 4 * GIB
    assert found.free_beside("http://other") is None
    assert (found.problem, found.notes) == ("", ())


def test_without_a_gpu_leases_and_recordings_are_there(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([], driver=False))
    recordings = tmp_path / "recordings"
    writer = open_in_folder(recordings, "serve")
    (recordings / "other.txt").write_text("no recording")
    with hold(gpu="cpu:lab:4GiB", bytes="1GiB", role="tower"):
        found = read_machine(folder, recordings)
    writer.close()
    assert found.gpus == ()
    assert "Driver Not Loaded" in found.problem
    assert [device.to_json()["holders"][0]["held_bytes"] for device in found.budgets] == [GIB]
    assert [(one.path, one.pid, one.running) for one in found.recordings] == [(writer.path, os.getpid(), True)]
    assert found.host_free_bytes > 0


def test_a_card_that_fails_does_not_hide_the_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml([FakeGpu("NVIDIA L4", "GPU-aa", 24 * GIB, 0), FakeGpu("NVIDIA L4", "GPU-bb", 24 * GIB, 0)])
    by_uuid = nvml.nvmlDeviceGetHandleByUUID

    def lost(uuid: str) -> FakeGpu:
        if uuid == "GPU-aa":
            raise nvml.NVMLError("GPU is lost")
        return by_uuid(uuid)

    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByUUID", lost)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = read_machine(folder, tmp_path)
    assert [one.key for one in found.gpus] == ["GPU-bb"]
    assert "GPU-aa" in found.notes[0]
