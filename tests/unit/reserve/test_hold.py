"""Leases of this process, taken, changed and given up, on a budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import brim
from brim.errors import DoesNotFit, InvalidRequest
from brim.records.lease import LeaseState
from brim.reserve.devices import Budget, private_budget
from brim.reserve.hold import hold
from brim.reserve.ledger import Ledger, known_devices
from brim.reserve.listing import listed_leases
from brim.reserve.promised import promised_bytes
from brim.reserve.sizing import sizing
from brim.sealed import seal, unseal
from brim.units import GIB, MIB
from tests.unit.probes.fake_nvml import FakeGpu, FakeNvml

LAB = "cpu:lab:1GiB"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path / "leases"))
    return tmp_path / "leases"


def states(folder: Path) -> list[tuple[str, int | None, int | None, LeaseState]]:
    with Ledger(folder, "cpu:lab").opened() as page:
        return [(one.role, one.promised_bytes, one.held_bytes, one.state) for one in page.leases]


def test_a_hold_is_there_while_it_lasts(folder: Path) -> None:
    with brim.hold(gpu=LAB, bytes="200MiB", role="embedder"):
        assert states(folder) == [("embedder", 200 * MIB, 200 * MIB, LeaseState.HELD)]
        with brim.hold(gpu=LAB, bytes=824 * MIB):
            assert len(states(folder)) == 2
        assert len(states(folder)) == 1
    assert states(folder) == []


def test_what_does_not_fit_takes_nothing_and_says_the_numbers(folder: Path) -> None:
    with hold(gpu=LAB, bytes="900MiB", role="embedder"):
        with pytest.raises(DoesNotFit) as caught, hold(gpu=LAB, bytes="200MiB", role="tower"):
            pass
        assert str(caught.value) == (
            "tower wants 200.0 MiB of cpu:lab, and 124.0 MiB of 1.00 GiB are left: the shortfall is 76.0 MiB "
            f"(embedder (pid {os.getpid()}) holds 900.0 MiB)"
        )
        assert caught.value.missing_bytes == 76 * MIB
        assert len(states(folder)) == 1


def test_reserve_then_yield(folder: Path) -> None:
    """The promise is an upper bound; what was measured takes its place, and the rest is there for others."""
    with hold(gpu=LAB, bytes="900MiB", role="tower", starting=True) as lease:
        assert states(folder) == [("tower", 900 * MIB, None, LeaseState.STARTING)]
        lease.hold(300 * MIB)
        with hold(gpu=LAB, bytes="700MiB"):
            pass
        lease.releasing()
        assert states(folder) == [("tower", 900 * MIB, 300 * MIB, LeaseState.RELEASING)]
        lease.release()
        assert states(folder) == []
        with pytest.raises(InvalidRequest, match="was given up"):
            lease.hold(5)


def test_a_lease_grows_into_what_the_neighbours_leave_and_no_further(folder: Path) -> None:
    with hold(gpu=LAB, bytes="900MiB", role="tower", starting=True) as lease:
        lease.hold(100 * MIB)
        with hold(gpu=LAB, bytes="900MiB", role="neighbour"):
            lease.hold(124 * MIB)
            with pytest.raises(
                DoesNotFit, match=r"tower wants 900.0 MiB of cpu:lab, and 124.0 MiB of 1.00 GiB are left"
            ):
                lease.hold(900 * MIB)
            assert states(folder)[0] == ("tower", 900 * MIB, 124 * MIB, LeaseState.HELD)
        with pytest.raises(DoesNotFit, match=r"wants 5.00 GiB"):
            lease.hold(5 * GIB)
        lease.hold(GIB)
        assert states(folder) == [("tower", 900 * MIB, GIB, LeaseState.HELD)]


def test_more_is_promised_only_where_there_is_room(folder: Path) -> None:
    with hold(gpu=LAB, bytes="100MiB", role="tower", starting=True) as lease, hold(gpu=LAB, bytes="524MiB"):
        lease.promise(500 * MIB)
        with pytest.raises(DoesNotFit, match=r"wants 501.0 MiB of cpu:lab, and 500.0 MiB of 1.00 GiB are left"):
            lease.promise(501 * MIB)
        assert states(folder)[0] == ("tower", 500 * MIB, None, LeaseState.STARTING)


@pytest.mark.usefixtures("folder")
def test_on_a_gpu_memory_that_is_measured_is_not_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    card = FakeGpu("NVIDIA L4", "GPU-aa", 24 * GIB, 4 * GIB)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([card]))
    with hold(gpu="GPU-aa", bytes="6GiB", starting=True) as lease, hold(gpu="GPU-aa", bytes="12GiB"):
        card.used = 12 * GIB  # the lease's eight, two more than it promised; the neighbour has its twelve still
        lease.hold(8 * GIB)
        card.used = 13 * GIB
        with pytest.raises(DoesNotFit, match=r"shortfall is 1.00 GiB"):
            lease.hold(9 * GIB)
        with pytest.raises(DoesNotFit, match=r"wants 1,024.00 GiB"):
            lease.hold(1024 * GIB)


@pytest.mark.parametrize("size", [1.5, True, -1, "4GiB", None])
def test_what_is_held_is_whole_bytes(folder: Path, size: Any) -> None:
    with hold(gpu=LAB, bytes="1MiB", starting=True) as lease:
        with pytest.raises(InvalidRequest, match=r"held_bytes is .*; write whole bytes, at least 0"):
            lease.hold(size)
        assert states(folder) == [("holder", MIB, None, LeaseState.STARTING)]


def garbage(path: Path) -> None:
    path.write_text("garbage", encoding="utf-8")


def of_a_newer_brim(path: Path) -> None:
    body = unseal(json.loads(path.read_text(encoding="utf-8")))
    assert body is not None
    path.write_text(json.dumps(seal({**body, "version": 2})), encoding="utf-8")


@pytest.mark.parametrize("harm", [garbage, of_a_newer_brim, Path.unlink])
def test_beside_a_running_process_whose_lease_cannot_be_read_nothing_is_promised(
    folder: Path, harm: Callable[[Path], object]
) -> None:
    lab = Budget("cpu:lab", GIB)
    unknown = rf"its process \(pid {os.getpid()}\) runs and its lease cannot be read.*; end that process"
    with hold(gpu=LAB, bytes="600MiB", role="embedder") as lease:
        harm(next(folder.glob("*/*.json")))
        for _ in range(2):  # also after the file was moved away
            with pytest.raises(DoesNotFit, match=unknown), hold(gpu=LAB, bytes="1MiB", role="tower"):
                pass
            with pytest.raises(DoesNotFit, match=unknown), sizing(lab):
                pass
            with pytest.raises(DoesNotFit, match=unknown):
                promised_bytes(lab)
            assert [one.pid for one in listed_leases(folder, "cpu:lab").unknown] == [str(os.getpid())]
        lease.hold(500 * MIB)  # its record is whole again
        with hold(gpu=LAB, bytes="524MiB") as neighbour:
            assert neighbour.problems == ()
        assert promised_bytes(lab) == 500 * MIB


def test_a_listing_names_what_others_have_isolated(folder: Path) -> None:
    with hold(gpu=LAB, bytes="600MiB"):
        garbage(folder / "cpu%3Alab" / "5-5-x.json")
        with hold(gpu=LAB, bytes="1MiB") as neighbour:
            (problem,) = neighbour.problems
        listing = listed_leases(folder, "cpu:lab")
    assert ([one.path for one in listing.problems], listing.unknown) == ([problem.moved_to], ())


def test_an_exception_inside_gives_the_lease_up(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"), hold(gpu=LAB, bytes="900MiB"):
        raise RuntimeError("mine")
    assert states(folder) == []


def test_a_forked_child_owns_nothing(folder: Path) -> None:
    with hold(gpu=LAB, bytes="100MiB", starting=True) as lease:
        child = os.fork()
        if child == 0:
            code = 3
            try:
                lease.release()
                lease.hold(5)
            except InvalidRequest as error:
                code = 0 if f"belongs to process {os.getppid()}" in str(error) else 4
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert states(folder) == [("holder", 100 * MIB, None, LeaseState.STARTING)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bytes": 0}, "bytes is 0; write whole bytes, at least 1"),
        ({"bytes": -5}, "bytes is -5"),
        ({"bytes": True}, "bytes is True; write whole bytes"),
        ({"bytes": "lots"}, "bytes 'lots' is not a size"),
        ({"role": " "}, "role ' *' is not 1 to 60 printable"),
        ({"role": "a\x00b"}, "printable"),
        ({"gpu": "h100"}, "no device of this machine"),
        ({"gpu": "cpu:lab:2GiB"}, r"is 1.00 GiB to embedder .* and 2.00 GiB here; give every process the same size"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_holds(changes: dict[str, Any], words: str) -> None:
    wanted: dict[str, Any] = {"gpu": LAB, "bytes": 5, **changes}
    with hold(gpu=LAB, bytes="100MiB", role="embedder"), pytest.raises(InvalidRequest, match=words), hold(**wanted):
        pass


def test_a_listing_removes_the_private_budget_of_an_engine_that_has_gone(folder: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    left, used = private_budget(gone.pid), private_budget(os.getpid())
    for key in (left, used):
        with hold(gpu=f"{key}:1GiB", bytes="1MiB"):
            listed_leases(folder, key)
            assert Ledger(folder, key).folder.exists()
        listed_leases(folder, key)
    assert known_devices(folder) == (used,)


def test_a_listing_has_stable_keys(folder: Path) -> None:
    assert listed_leases(folder, "cpu:lab").leases == ()
    assert not folder.exists()
    with hold(gpu=LAB, bytes="100MiB", role="embedder"):
        (row,) = [one.to_json() for one in listed_leases(folder, "cpu:lab").leases]
    assert 0 < row.pop("used_bytes") < 64 * GIB
    assert 0 <= row.pop("age_seconds") < 600
    assert row == {
        "pid": os.getpid(),
        "role": "embedder",
        "device": "cpu:lab",
        "promised_bytes": 100 * MIB,
        "held_bytes": 100 * MIB,
        "state": "held",
    }
