"""Leases of this process, taken, changed and given up, on a budget."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import brim
from brim.errors import DoesNotFit, InvalidRequest
from brim.folders import leases_folder
from brim.records.lease import LeaseState
from brim.reserve import upkeep
from brim.reserve.devices import Budget, private_budget
from brim.reserve.hold import blank, check_room, enter, hold, take
from brim.reserve.ledger import Ledger, known_devices
from brim.reserve.listing import listed_leases
from brim.reserve.page import Page
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


def lost_with_its_copy(path: Path) -> None:
    path.unlink()
    os.truncate(path.with_suffix(".alive"), 0)  # as an earlier Brim leaves it


def of_a_newer_brim(path: Path) -> None:
    body = unseal(json.loads(path.read_text(encoding="utf-8")))
    assert body is not None
    path.write_text(json.dumps(seal({**body, "version": 2})), encoding="utf-8")


@pytest.mark.parametrize("harm", [garbage, Path.unlink])
def test_a_record_that_is_lost_is_written_again_by_who_looks_next(folder: Path, harm: Callable[[Path], object]) -> None:
    with hold(gpu=LAB, bytes="600MiB", role="embedder"):
        before = states(folder)
        harm(next(folder.glob("*/*.json")))
        with pytest.raises(DoesNotFit, match=r"embedder .* holds 600.0 MiB"), hold(gpu=LAB, bytes="500MiB"):
            pass
        assert states(folder) == before


def deleted_with_its_mark(path: Path) -> None:
    path.unlink()
    path.with_suffix(".alive").unlink(missing_ok=True)


def all_deleted(path: Path) -> None:
    shutil.rmtree(path.parents[1])


def deleted_with_the_lock(path: Path) -> None:
    deleted_with_its_mark(path)
    path.with_name("lock").unlink()


@pytest.mark.parametrize("harm", [Path.unlink, deleted_with_its_mark, all_deleted, deleted_with_the_lock])
def test_a_newcomer_finds_holders_whose_files_a_cleaner_has_deleted(
    folder: Path, harm: Callable[[Path], object]
) -> None:
    """In this process and in one that runs no Brim any more; a lease that was given up does not come back."""
    with hold(gpu=LAB, bytes="100MiB", role="gone"):
        child = os.fork()  # it has the mark open, and holds nothing
        if child == 0:
            signal.pause()
    command = [sys.executable, "-m", "brim.cli.main", "hold", "--gpu", LAB, "400MiB", "--", "sh", "-c"]
    try:
        with (
            subprocess.Popen([*command, "echo there; exec sleep 60"], stdout=subprocess.PIPE, text=True) as process,
            hold(gpu=LAB, bytes="300MiB", role="embedder"),
        ):
            assert process.stdout is not None
            process.stdout.readline()
            before = sorted(states(folder))
            harm(min(folder.glob("*/*.json")))
            with pytest.raises(DoesNotFit, match=r"324.0 MiB of 1.00 GiB are left"), hold(gpu=LAB, bytes="400MiB"):
                pass
            harm(min(folder.glob("*/*.json")))
            assert sorted(states(folder)) == before
            assert len(before) == 2
            process.kill()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert states(folder) == []


@pytest.mark.usefixtures("folder")
def test_two_who_make_the_lock_anew_at_the_same_time_do_not_both_get_the_memory() -> None:
    """A cleaner deletes it while somebody is inside: who comes then makes another, and is inside too."""
    lab, others = Budget("cpu:lab", GIB), []

    def admit(page: Page) -> None:
        check_room(lease, lab, page)
        if not others:
            Ledger(leases_folder(), lab.key).lock.unlink()
            others.append(take(lab, 600 * MIB, "other"))

    lease = replace(blank(lab, "tower"), promised_bytes=600 * MIB)
    with pytest.raises(DoesNotFit, match=r"tower wants 600.0 MiB .* \(other .* holds 600.0 MiB\)"):
        enter(lab, lease, admit, None)
    others[0].release()


def test_a_holder_keeps_its_files_in_use_and_publishes_them_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.01)
    with hold(gpu=LAB, bytes="300MiB", role="embedder") as lease:
        paths = [folder, *folder.rglob("*")]
        assert len(paths) == 5  # two folders, the lock, the record, the mark
        for path in paths:
            os.utime(path, (1, 1))
        until(lambda: all(path.stat().st_mtime > 1 for path in paths))
        shutil.rmtree(folder)
        until(lambda: len(list(folder.rglob("*"))) == 4)
        assert [one[0] for one in states(folder)] == ["embedder"]
        mark = next(folder.glob("*/*.alive"))
        kept = (
            "import sys, pathlib; from brim.reserve.locks import has_life; print(has_life(pathlib.Path(sys.argv[1])))"
        )
        said = subprocess.run([sys.executable, "-c", kept, mark], capture_output=True, text=True, check=True).stdout
        assert said == "True\n"
        lease.hold(200 * MIB)
    assert states(folder) == []


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("nothing happened for 30 s")


KEPT = """
import os, sys, brim.reserve.hold as hold
from brim.reserve.devices import find_leased
from brim.reserve.processes import identify
lease = hold.take(find_leased("cpu:lab:1GiB"), int(sys.argv[1]), "tower", starting=True, keeper=identify(os.getppid()))
lease.hold(int(sys.argv[2])); print("holds", flush=True); sys.stdin.read()
"""


def test_what_a_holder_left_is_kept_for_the_next_one_that_its_keeper_starts(folder: Path) -> None:
    def start(promised: int, held: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", KEPT, str(promised * MIB), str(held * MIB)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    first = start(500, 400)
    assert first.stdout is not None
    first.stdout.readline()
    with hold(gpu=LAB, bytes="624MiB", role="llm"):
        first.kill()
        first.wait()
        assert states(folder)[0] == ("tower", 500 * MIB, 400 * MIB, LeaseState.HELD)
        with pytest.raises(DoesNotFit, match=r"and 0 B of 1.00 GiB are left"), hold(gpu=LAB, bytes="1MiB"):
            pass
        second = start(400, 400)
        assert second.stdout is not None
        assert second.stdout.readline() == "holds\n"
        with Ledger(folder, "cpu:lab").opened() as page:
            assert [one.holder.pid for one in page.leases] == [os.getpid(), second.pid]
        third = start(1, 1)  # nobody has left anything now
        assert third.wait() == 1
        second.communicate()
        assert second.returncode == 0
    assert states(folder) == [("tower", 400 * MIB, 400 * MIB, LeaseState.HELD)]  # it did not give its lease up


@pytest.mark.parametrize("harm", [of_a_newer_brim, lost_with_its_copy])
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
