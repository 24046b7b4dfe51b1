from __future__ import annotations

import sys

import pytest

from brim.errors import UnknownDevice
from brim.probes.usage import GpuUsage, gpu_usage, is_divided
from tests.unit.probes.fake_nvml import GIB, FakeGpu, FakeNvml


def test_what_is_free_and_who_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu("NVIDIA L4", "GPU-1", 24 * GIB, 3 * GIB, processes={7: 2 * GIB, 8: None})
    part = FakeGpu("NVIDIA L4 MIG", "MIG-2", 10 * GIB, 0, part_of=gpu)
    nvml = FakeNvml([gpu], [part])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_usage("GPU-1") == GpuUsage(24 * GIB, 21 * GIB, {7: 2 * GIB})  # of 8 the driver does not say
    assert gpu_usage("MIG-2") == GpuUsage(10 * GIB, 10 * GIB, {})
    assert (is_divided("GPU-1"), is_divided("MIG-2")) == (False, False)
    gpu.divided = True
    assert is_divided("GPU-1")
    with pytest.raises(UnknownDevice, match="'GPU-3' is not on this machine; `nvidia-smi -L` lists"):
        gpu_usage("GPU-3")
    assert nvml.open == 0
