"""The CUDA probe beside torch's own figures, and without a device."""

from __future__ import annotations

import pytest

from brim.errors import DeviceError
from brim.probes.cuda import CudaProbe
from brim.units import MIB

torch = pytest.importorskip("torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a device")
def test_without_a_device_it_says_so() -> None:
    with pytest.raises(DeviceError, match="--device cpu"):
        CudaProbe(0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_reading_adds_up() -> None:
    probe = CudaProbe(0)
    before = probe.reading()
    kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    after = probe.reading()
    assert after.allocated_bytes - before.allocated_bytes == kept.numel()
    assert after.total_bytes == after.free_bytes + after.reserved_bytes + after.other_bytes
    assert after.process_bytes is None or after.process_bytes >= after.reserved_bytes
    del kept
    assert probe.reading().peak_allocated_bytes >= after.allocated_bytes
    probe.reset_peak()
    assert probe.reading().peak_allocated_bytes == before.allocated_bytes
    with pytest.raises(DeviceError, match="no CUDA device 99"):
        CudaProbe(99)
