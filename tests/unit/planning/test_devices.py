from __future__ import annotations

import pytest

from brim.errors import DeviceError, InvalidRequest, UnknownDevice
from brim.planning.devices import catalogue, find_device
from brim.units import GIB, MIB


def test_the_catalogue() -> None:
    devices = catalogue()
    assert len(devices) >= 40
    for device in devices:
        assert 0 <= device.hidden_bytes < device.total_bytes // 20
        assert device.context_bytes > 200 * MIB


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("h200", 143771),
        ("H200", 143771),
        ("NVIDIA H200", 143771),
        ("rtx-4090", 24564),
        ("RTX 4090", 24564),
        ("GeForce RTX 4090", 24564),
        ("4090", 24564),
        ("rtx4090", 24564),
        ("h100", 81559),
    ],
)
def test_names(text: str, mib: int) -> None:
    assert find_device(text).total_bytes == mib * MIB


def test_sizes() -> None:
    device = find_device("24GiB")
    assert device.total_bytes == 24 * GIB
    assert device.usable_bytes < device.total_bytes


def test_the_h200_as_measured() -> None:
    assert find_device("h200").usable_bytes == 143156 * MIB


def test_unknown() -> None:
    with pytest.raises(UnknownDevice, match="did you mean h100"):
        find_device("h1000")
    with pytest.raises(UnknownDevice, match="brim gpus"):
        find_device("abacus")
    with pytest.raises(InvalidRequest, match="smaller than 1 GiB"):
        find_device("100MiB")
    with pytest.raises(InvalidRequest, match="not a size"):
        find_device("24 parsecs")


def test_auto_without_a_driver_says_what_to_do() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(DeviceError, match="name a GPU, or give a size"):
            find_device("auto")
    else:
        assert find_device("auto").total_bytes > GIB
