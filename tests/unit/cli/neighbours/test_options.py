"""What keeps a command on a GPU from asking its neighbours, and what does not."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

from brim.cli.engine_options import EnginePlace
from brim.cli.neighbours import options as neighbour_options
from brim.cli.neighbours.options import part_of_device
from brim.errors import DeviceError, EncoderFailed, NeighboursUnknown
from brim.reserve.devices import Gpu
from tests.unit.probes.fake_nvml import GIB, FakeGpu, FakeNvml

CARD = Gpu("GPU-aa", 24 * GIB)
NOTHING_GIVEN = argparse.Namespace(
    wait_neighbours=None, expect_neighbours=None, share=None, quiet=True, as_json=True, tp=1
)


class FailedEncoders:
    """Whose process has gone before it took its lease."""

    leases = ((CARD.key, "vision encoder"),)

    def check(self) -> None:
        raise EncoderFailed("the encoder cannot be started")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path / "leases"))
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([FakeGpu("NVIDIA L4", CARD.key, CARD.total_bytes, 0)]))
    monkeypatch.setattr(neighbour_options, "leased_device", lambda _: CARD)
    return tmp_path / "leases"


def test_an_encoder_that_cannot_start_is_an_error() -> None:
    encoders: Any = FailedEncoders()
    failed = pytest.raises(EncoderFailed, match="cannot be started")
    with failed, part_of_device(NOTHING_GIVEN, EnginePlace("cuda:0"), False, encoders) as part:
        assert part is not None
        part.decide()


def test_a_ledger_that_cannot_be_opened_is_an_error(folder: Path) -> None:
    (folder / CARD.key / "lock").mkdir(parents=True)
    folder.chmod(0o700)
    (folder / CARD.key).chmod(0o700)
    unknown = pytest.raises(NeighboursUnknown, match="cannot be locked; remove it")
    with unknown, part_of_device(NOTHING_GIVEN, EnginePlace("cuda:0"), False):
        pass


def test_without_a_driver_that_counts_a_command_goes_on_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_driver(_: EnginePlace) -> Gpu:
        raise DeviceError("NVML is not there")

    monkeypatch.setattr(neighbour_options, "leased_device", without_driver)
    with part_of_device(NOTHING_GIVEN, EnginePlace("cuda:0"), False) as part:
        assert part is None
    assert capsys.readouterr().err == "note: neighbours are not asked: NVML is not there\n"
