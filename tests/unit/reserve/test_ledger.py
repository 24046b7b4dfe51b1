"""The ledger on a real disk: whom it believes, what it removes, what it moves away, and what it leaves alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.errors import DeviceError, NeighboursUnknown
from brim.records.lease import Lease, SizeWish
from brim.reserve import files
from brim.reserve.codec import BadFile, from_body, to_body
from brim.reserve.ledger import Ledger, known_devices
from brim.reserve.processes import identify, is_running, is_suspended, this_process
from brim.sealed import seal
from tests.unit.reserve.made import LAB, holder, mine


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "leases", LAB.key)


def found(book: Ledger) -> tuple[Lease, ...]:
    with book.opened() as page:
        return page.leases


def record(book: Ledger, lease: Lease) -> Path:
    return book.folder / f"{lease.name}.json"


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command or ("sleep", "60"))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def write_sealed(path: Path, body: dict[str, Any]) -> None:
    path.write_text(json.dumps(seal(body)), encoding="utf-8")
    path.chmod(0o600)


# -- records ---------------------------------------------------------------------------------------------------------


def test_a_lease_is_read_as_it_was_written_and_arrivals_are_numbered(book: Ledger) -> None:
    with book.opened() as page:
        first, _ = page.add(mine(100))
        second, _ = page.add(replace(mine(200), share=SizeWish(fraction=0.25)))
    assert found(book) == (first, second)
    assert [first.generation, second.generation] == [1, 2]
    with book.opened() as page:
        page.remove(first)
        page.remove(second)
    with book.opened() as page:
        third, _ = page.add(mine(300))
    assert third.generation == 3  # also after all others have gone
    assert known_devices(book.root) == (LAB.key,)


def test_files_are_private(book: Ledger) -> None:
    before = os.umask(0)
    try:
        with book.opened() as page:
            page.add(mine(100))
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (book.root, book.folder)} == {"0o700"}
    assert {oct(path.stat().st_mode & 0o777) for path in book.folder.iterdir()} == {"0o600"}
    assert len(list(book.folder.iterdir())) == 3  # the lock, the lease, its mark


def test_a_failed_write_leaves_the_old_record(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, seen before the rename."""
    with book.opened() as page:
        lease, mark = page.add(mine(100))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with (
        pytest.raises(DeviceError, match=r"No space left on device; make room there, or set BRIM_LEASES"),
        book.opened() as page,
    ):
        page.publish(replace(lease, promised_bytes=900), mark)
    with pytest.raises(DeviceError, match="No space left"), book.opened() as page:
        page.add(mine(5))
    assert found(book) == (lease,)
    assert len(list(book.folder.iterdir())) == 3  # no temporary file, no mark of the lease that did not come to be


# -- who is alive ----------------------------------------------------------------------------------------------------


def test_the_lease_of_a_process_that_has_gone_is_removed(book: Ledger) -> None:
    with running() as process:
        with book.opened() as page:
            lease, _ = page.add(replace(mine(100), holder=identify(process.pid)))
        assert found(book) == (lease,)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still there as a zombie
        assert found(book) == ()
    assert not record(book, lease).exists()


def test_a_number_that_was_reused_is_another_process(book: Ledger) -> None:
    me = this_process()
    with book.opened() as page:
        page.add(replace(mine(100), holder=replace(me, started_ticks=me.started_ticks - 1)))
        page.add(replace(mine(100), holder=replace(me, boot_id="an-earlier-boot")))
    assert found(book) == ()


def test_a_suspended_process_still_holds(book: Ledger) -> None:
    with running() as process:
        with book.opened() as page:
            lease, _ = page.add(replace(mine(100), holder=identify(process.pid)))
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert is_suspended(lease.holder)
        assert found(book) == (lease,)


IN_A_CONTAINER = """
import sys, time
from pathlib import Path
from tests.unit.reserve.made import LAB, mine
from brim.reserve.ledger import Ledger
with Ledger(Path(sys.argv[1]), LAB.key).opened() as page:
    page.add(mine(100, "elsewhere"))
print("there", flush=True)
time.sleep(60)
"""


def test_a_process_of_another_container_is_known_by_its_mark(book: Ledger) -> None:
    """A real pid namespace: there the process is number 1, and our /proc says nothing of it."""
    command = ("unshare", "-Urpf", "--mount-proc", "--kill-child")
    try:
        possible = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("pid namespaces cannot be made here")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [*command, sys.executable, "-c", IN_A_CONTAINER, str(book.root)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"there\n"
            (lease,) = found(book)
            assert (lease.role, lease.holder.pid) == ("elsewhere", 1)
            assert is_running(lease.holder, this_process()) is None
            assert found(book) == (lease,)  # looking has not broken the mark
        finally:
            process.kill()
    deadline = time.monotonic() + 30
    while found(book) and time.monotonic() < deadline:  # the kernel ends the namespace a moment later
        time.sleep(0.01)
    assert found(book) == ()


def test_a_record_of_another_container_without_a_mark_is_not_believed(book: Ledger) -> None:
    elsewhere = replace(this_process(), pid_space=1, pid=999)
    with book.opened() as page:
        lease, mark = page.add(replace(mine(100), holder=elsewhere))
        mark.end()
    assert found(book) == ()
    assert not record(book, lease).exists()


# -- files that are no leases ----------------------------------------------------------------------------------------


def damaged(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace("tower", "power"), encoding="utf-8")


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def open_to_all(path: Path) -> None:
    path.chmod(0o644)


def foreign(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    os.chown(path, 12345, -1)


def huge(path: Path) -> None:
    path.write_text("x" * 20_000, encoding="utf-8")


def a_link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def renamed(path: Path) -> None:
    path.rename(path.with_name("9-9-another.json"))


def nested(path: Path) -> None:
    path.write_text("[" * 8000, encoding="utf-8")


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (damaged, "checksum"),
        (truncated, "truncated or not JSON"),
        (empty, "truncated or not JSON"),
        (open_to_all, r"open to other users \(mode 644\)"),
        (foreign, "belongs to user 12345"),
        (huge, "too large"),
        (a_link, "cannot be opened"),
        (a_folder, "no plain file"),
        (a_pipe, "no plain file"),
        (renamed, "the lease of 1-"),
        (nested, "truncated or not JSON"),
    ],
)
def test_what_is_no_lease_is_moved_away_and_reported_and_its_holder_goes_on(
    book: Ledger, harm: Callable[[Path], None], reason: str
) -> None:
    with book.opened() as page:
        lease, mark = page.add(mine(100))
        kept, _ = page.add(mine(200, "kept"))
    harm(record(book, lease))
    mark.write(b"")  # as an earlier Brim leaves it
    with book.opened() as page:
        assert page.leases == (kept,)
        (problem,) = page.problems
        assert problem.moved_to is not None
        assert problem.moved_to.parent == book.folder / "isolated"
        assert re.search(reason, problem.reason), problem
    with book.opened() as page:
        assert not page.problems  # once is enough
        assert [one.name for one in page.unknown] == [lease.name]  # its process runs
        healed = page.publish(replace(lease, promised_bytes=50), mark)
        assert (page.leases, page.unknown) == ((healed, kept), [])
    harm(record(book, lease))
    with book.opened() as page:
        assert (page.leases, page.unknown) == ((healed, kept), [])  # from the mark
        assert len(page.problems) == 1
    with book.opened() as page:
        assert (page.leases, page.unknown, page.problems) == ((healed, kept), [], [])


def test_a_damaged_record_of_a_process_that_has_gone_claims_nothing(book: Ledger) -> None:
    with book.opened() as page:
        lease, mark = page.add(mine(100))
    damaged(record(book, lease))
    mark.end()
    left = record(book, lease).with_suffix(".alive")
    left.touch(mode=0o600)  # as a process leaves it that is killed
    with book.opened() as page:
        assert (page.leases, page.unknown, len(page.problems)) == ((), [], 1)
    assert not left.exists()


def test_a_mark_with_this_process_number_that_another_left_is_swept(book: Ledger) -> None:
    """A container that is started again has the same numbers."""
    with book.opened() as page:
        page.add(mine(100))
    left = book.folder / f"7-{os.getpid()}-abc.alive"
    left.touch(mode=0o600)
    with book.opened() as page:
        assert (len(page.leases), page.unknown) == (1, [])
    assert not left.exists()


def test_a_record_of_a_newer_brim_is_reported_and_left_where_it_is(book: Ledger) -> None:
    with book.opened() as page:
        page.add(mine(100))
    path = book.folder / "7-7-future.json"
    write_sealed(path, {"version": 2, "whatever": "it means"})
    for _ in range(2):
        with book.opened() as page:
            assert len(page.leases) == 1
            assert "version 2, written by a newer Brim" in str(page.problems[0])
            assert page.problems[0].moved_to is None
    assert path.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1"},
        {"version": None},
        {"holder": None},
        {"holder": {"pid": -1, "started_ticks": 1, "boot_id": "b", "pid_space": 1}},
        {"holder": {"pid": 1, "started_ticks": True, "boot_id": "b", "pid_space": 1}},
        {"role": ""},
        {"role": "a\x1b[31mred"},
        {"role": "x" * 500},
        {"state": "gone"},
        {"promised_bytes": -5},
        {"promised_bytes": 1 << 70},
        {"promised_bytes": 1.5},
        {"promised_bytes": None},
        {"state": "held", "held_bytes": None},
        {"measured": 1},
        {"created_seconds": float("nan")},
        {"heartbeat_seconds": "soon"},
        {"share": {"fraction": 2.0, "bytes": None}},
        {"share": {"fraction": 0.5}},
        {"share": []},
    ],
)
def test_every_field_is_checked(change: dict[str, Any]) -> None:
    lease = holder(100)
    body = to_body(lease)
    assert from_body(body, lease.name, lease.device) == lease
    with pytest.raises(BadFile):
        from_body({**body, **change}, lease.name, lease.device)


def test_what_a_killed_writer_left_is_swept(book: Ledger) -> None:
    with book.opened() as page:
        lease, _ = page.add(mine(100))
    (book.folder / "5-5-half.json.tmp").write_text("{", encoding="utf-8")
    (book.folder / "5-5-half.alive").touch(mode=0o600)  # its process died between the mark and the record
    assert found(book) == (lease,)
    assert sorted(path.suffix for path in book.folder.iterdir()) == ["", ".alive", ".json"]


def a_link_to_somewhere(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def a_link_to_nowhere(path: Path) -> None:
    path.symlink_to("/nowhere")


@pytest.mark.parametrize("make", [a_link_to_somewhere, a_link_to_nowhere, Path.mkdir, os.mkfifo])
def test_what_is_put_in_the_place_of_a_mark_is_moved_away_or_believed(
    book: Ledger, make: Callable[[Path], None]
) -> None:
    with book.opened() as page:
        kept, _ = page.add(mine(100))
        elsewhere, mark = page.add(replace(mine(200), holder=replace(this_process(), pid_space=1, pid=999)))
        mark.end()
    alone, of_a_lease = book.folder / "5-77-abc.alive", book.folder / f"{elsewhere.name}.alive"
    make(alone)
    make(of_a_lease)
    for expected in ({(alone, True), (of_a_lease, False)}, {(of_a_lease, False)}):
        with book.opened() as page:
            assert page.leases == (kept, elsewhere)  # whether it runs cannot be known
            assert {(problem.path, problem.moved_to is not None) for problem in page.problems} == expected
            assert not page.unknown
    assert [path.stem for path in book.isolated.iterdir()] == [alone.name]


def test_a_folder_in_the_place_of_a_half_written_record_is_moved_away(book: Ledger) -> None:
    with book.opened() as page:
        lease, mark = page.add(mine(100))
    half = book.folder / f"{lease.name}.json.tmp"
    half.mkdir()
    with book.opened() as page:
        assert [problem.path for problem in page.problems] == [half]
        lease = page.publish(replace(lease, promised_bytes=200), mark)
    assert found(book) == (lease,)


@pytest.mark.parametrize("written", ["99999999999999999999", "4611686018427387903", "garbage", "-5"])
def test_a_damaged_number_in_the_lock_is_reported_and_leases_stay_readable(book: Ledger, written: str) -> None:
    with book.opened() as page:
        first, _ = page.add(mine(100))
    book.lock.write_text(written, encoding="utf-8")
    with book.opened() as page:
        assert [problem.path for problem in page.problems] == [book.lock]
        second, _ = page.add(mine(200))
    with book.opened() as page:
        assert (page.leases, page.problems, second.generation) == ((first, second), [], 2)


def test_a_lease_that_nobody_could_read_is_not_written(book: Ledger) -> None:
    with book.opened() as page:
        lease, mark = page.add(mine(100))
        with pytest.raises(DeviceError, match="a lease cannot be written: not a lease"):
            page.publish(replace(lease, generation=1 << 60), mark)
    assert found(book) == (lease,)


@pytest.mark.parametrize("make", [a_link_to_nowhere, Path.mkdir, os.mkfifo])
def test_a_lock_that_cannot_be_locked_is_named(book: Ledger, make: Callable[[Path], None]) -> None:
    book.folder.mkdir(parents=True, mode=0o700)
    book.root.chmod(0o700)
    make(book.lock)
    with pytest.raises(NeighboursUnknown, match="lock is no plain file and cannot be locked; remove it"), book.opened():
        pass


# -- folders ---------------------------------------------------------------------------------------------------------


def test_folders_that_are_no_ledgers_are_left_alone(book: Ledger) -> None:
    with book.opened() as page:
        page.add(mine(100))
    for name in ("notes", "cpu%3Aunlocked", "cpu%3A..", "cpu:lab", "GPU-aa"):
        (book.root / name).mkdir(mode=0o700)
    (book.root / "notes" / "lock").touch()
    (book.root / "GPU-aa" / "lock").touch(mode=0o600)
    (book.root / "cpu%3Alink").symlink_to(book.folder)
    assert known_devices(book.root) == ("GPU-aa", LAB.key)


def test_a_folder_that_others_can_enter_is_refused(book: Ledger) -> None:
    book.root.mkdir(mode=0o755)
    book.root.chmod(0o755)
    with pytest.raises(DeviceError, match=r"open to other users; chmod 700 it"), book.opened():
        pass
    book.root.rmdir()
    book.root.write_text("a file", encoding="utf-8")
    with pytest.raises(DeviceError, match="is no folder"), book.opened():
        pass
    book.root.unlink()
    book.root.symlink_to("/tmp")
    with pytest.raises(DeviceError, match="is no folder"), book.opened():
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_of_another_user_is_refused(book: Ledger) -> None:
    book.root.mkdir(mode=0o700)
    os.chown(book.root, 12345, -1)
    with pytest.raises(DeviceError, match="belongs to user 12345; set BRIM_LEASES"), book.opened():
        pass


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw - nfs4 server:/home rw
31 22 0:41 / /mnt/my\\040disk rw - fuse.sshfs host: rw
32 30 0:42 / /home/me/local rw - xfs /dev/sdb rw
33 22 0:43 / /tmp rw - ext4 /dev/sdc rw
34 22 0:44 / /tmp rw - 9p share rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/x", "ext4"),
        ("/home/me/leases", "nfs4"),
        ("/home/me/local/leases", "xfs"),
        ("/mnt/my disk/a", "fuse.sshfs"),
        ("/tmp/brim-0", "9p"),  # the later mount hides the earlier
        ("/homes/a", "ext4"),
    ],
)
def test_file_systems_that_machines_share_are_refused(folder: str, kind: str) -> None:
    assert files._filesystem(Path(folder), MOUNTS) == kind
    assert bool(files._NETWORKED.fullmatch(kind)) == (kind not in ("ext4", "xfs"))
