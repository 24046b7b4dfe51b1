"""Leases of this process, taken, changed and given up, on a budget."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import brim
from brim.errors import DoesNotFit, InvalidRequest
from brim.records.lease import LeaseState
from brim.reserve.devices import Budget
from brim.reserve.hold import hold
from brim.reserve.ledger import Ledger
from brim.reserve.listing import listed_leases
from brim.reserve.promised import promised_bytes
from brim.reserve.sizing import sizing
from brim.sealed import seal, unseal
from brim.units import GIB, MIB

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
        ({"bytes": 0}, "bytes is 0; write at least 1"),
        ({"bytes": -5}, "bytes is -5"),
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
