"""Locks and processes: real ones, that are killed, forked and renamed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brim.errors import NeighboursUnknown
from brim.reserve import processes
from brim.reserve.locks import LivenessLock, exclusive, has_life
from brim.reserve.processes import descendants, identify, is_running, this_process


def test_a_lock_is_waited_for_with_a_limit_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import sys, time; from pathlib import Path; from brim.reserve.locks import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 5): print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        refused = r"was locked by another process for 0.05 s; see whether"
        with pytest.raises(NeighboursUnknown, match=refused), exclusive(path, 0.05):
            pass
        process.kill()
        with exclusive(path, 30):
            pass


def test_a_forked_child_keeps_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive(path, 5):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    try:
        with exclusive(path, 0.5):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_whose_file_was_removed_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive(path, 5):
        path.unlink()  # as cleaners of /tmp do
        with exclusive(path, 5) as another:
            assert os.fstat(another).st_ino == path.stat().st_ino


def test_a_mark_is_kept_by_its_process_alone(tmp_path: Path) -> None:
    path = tmp_path / "mark"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        mark = LivenessLock(path)
        grandchild = os.fork()
        if grandchild:
            os.write(writing, str(grandchild).encode())
        time.sleep(60)
        mark.end()
        os._exit(0)
    grandchild = int(os.read(reading, 20))
    try:
        assert has_life(path)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert not has_life(path)  # although the grandchild runs, with the same file open
        assert is_running(identify(grandchild), this_process())
    finally:
        os.kill(grandchild, signal.SIGKILL)
    assert not has_life(tmp_path / "nothing")


@pytest.mark.parametrize("hidden", [PermissionError, FileNotFoundError])
def test_a_process_that_proc_hides_is_not_taken_for_dead(
    hidden: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with hidepid=1 and hidepid=2."""
    me, shown = this_process(), processes._stat

    def hides_others(pid: int) -> list[str]:
        if pid != os.getpid():
            raise hidden(1, "hidden", f"/proc/{pid}/stat")
        return shown(pid)

    with subprocess.Popen(["sleep", "60"]) as process:
        found = identify(process.pid)
        monkeypatch.setattr(processes, "_stat", hides_others)
        assert is_running(found, me) is None  # its mark decides
        assert is_running(me, me)
        assert descendants(os.getpid()) == {os.getpid()}
        process.kill()
    monkeypatch.undo()
    assert is_running(found, me) is False


def test_a_process_with_brackets_in_its_name_is_known_by_its_start() -> None:
    script = "open('/proc/self/comm', 'w').write('a) 1 (b'); print(flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found, me = identify(process.pid), this_process()
        assert me.started_ticks <= found.started_ticks < me.started_ticks + 10**7
        assert is_running(found, me)
        process.kill()
    assert not is_running(found, me)
