from __future__ import annotations

import sys

import pytest

from brim.errors import DeviceError
from brim.probes.visible import VisibleGpu, visible_gpus
from tests.unit.probes.fake_nvml import GIB, FakeGpu, FakeNvml

H100 = FakeGpu("NVIDIA H100 80GB HBM3", "GPU-aaaa-1", 80 * GIB, 1 * GIB)
A100 = FakeGpu("NVIDIA A100-SXM4-40GB", "GPU-bbbb-2", 40 * GIB, 2 * GIB, (8, 0))
L4 = FakeGpu("NVIDIA L4", "GPU-bbcc-3", 24 * GIB, 3 * GIB, (8, 9))
PART = FakeGpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-dddd-4", 10 * GIB, 0, part_of=H100)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml([H100, A100, L4], [PART])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def names(asked: str | None) -> list[str]:
    return [gpu.name for gpu in visible_gpus({} if asked is None else {"CUDA_VISIBLE_DEVICES": asked})]


def test_a_gpu_as_nvml_reports_it(nvml: FakeNvml) -> None:
    assert visible_gpus({})[1] == VisibleGpu("NVIDIA A100-SXM4-40GB", 40 * GIB, 2 * GIB, (8, 0), "GPU-bbbb-2")
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (None, [H100, A100, L4]),
        ("0,1,2", [H100, A100, L4]),
        ("2,0", [L4, H100]),
        (" 1 , 2 ", [A100, L4]),
        ("GPU-bbbb-2", [A100]),
        ("GPU-a,GPU-bbc", [H100, L4]),  # as much as is unique
        ("MIG-dddd-4", [PART]),
        ("1,-1,2", [A100]),  # CUDA stops at the first that is not a GPU
        ("1,7,2", [A100]),
        ("1,GPU-zz,2", [A100]),
    ],
)
@pytest.mark.usefixtures("nvml")
def test_what_cuda_shows(asked: str | None, seen: list[FakeGpu]) -> None:
    assert names(asked) == [gpu.name for gpu in seen]


@pytest.mark.parametrize("asked", ["", "-1", "7", "none", "GPU-bb", "MIG-none", "0,0", "0,GPU-aaaa-1", "9" * 5000])
def test_none_is_an_error_that_names_the_variable(nvml: FakeNvml, asked: str) -> None:
    with pytest.raises(DeviceError, match=r"sees no GPU.*CUDA_VISIBLE_DEVICES is.*name a GPU, or give a size"):
        names(asked)
    assert nvml.open == 0


def test_a_part_of_a_gpu_has_the_architecture_of_the_whole(nvml: FakeNvml) -> None:
    (part,) = visible_gpus({"CUDA_VISIBLE_DEVICES": nvml.parts[0].uuid})
    assert (part.total_bytes, part.compute_capability) == (10 * GIB, (9, 0))


def test_no_driver_and_no_gpu(nvml: FakeNvml) -> None:
    nvml.gpus.clear()
    with pytest.raises(DeviceError, match="this process sees no GPU; name a GPU"):
        names(None)
    nvml.driver = False
    with pytest.raises(DeviceError, match=r"needs an NVIDIA driver.*Driver Not Loaded"):
        names(None)
