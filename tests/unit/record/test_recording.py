"""A recording as a file: what goes in comes out, whatever the moment at which its writer ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import InvalidRequest
from brim.record.entries import LedgerLine, Note, NoteKind, StartEntry, StepEntry, StepState
from brim.record.layout import NOTE_BYTES, STEP_BYTES, FileHeader, pack_note, pack_step, unpack_note
from brim.record.reader import read_recording
from brim.record.writer import KEPT, SUFFIX, RecordingInUse, RecordingWriter, open_in_folder, open_recording

START = StartEntry(
    "brim", "1", "tiny", "cpu", 1 << 30, 4096, 1 << 20, (("max_batch", "8"),), (LedgerLine("kv", 1, None),)
)
U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
STEPS = st.builds(
    lambda time, state, counts, sizes: StepEntry(time, state, *counts, *sizes),
    st.floats(0, 1e11),
    st.sampled_from(StepState),
    st.lists(U32, min_size=14, max_size=14),
    st.lists(U64, min_size=4, max_size=4),
)
SIZES = st.integers(-(1 << 62), 1 << 62)
NOTES = st.builds(
    Note, st.floats(0, 1e11), st.sampled_from(NoteKind), U32, SIZES, SIZES, SIZES, st.text("aé漢 :", max_size=60)
)


def small(path: Path, steps: int = 8, notes: int = 4) -> RecordingWriter:
    """A file with few slots, so that its rings come round."""
    return RecordingWriter(path, FileHeader(os.getpid(), 5.0, steps, notes))


@settings(deadline=None)
@given(steps=st.lists(STEPS, max_size=20), notes=st.lists(NOTES, max_size=10))
def test_what_was_written_last_is_read(tmp_path_factory: pytest.TempPathFactory, steps: list, notes: list) -> None:
    path = tmp_path_factory.mktemp("ring") / "r"
    writer = small(path)
    for step in steps:
        writer.step(step)
    for note in notes:
        writer.note(note)
    found = read_recording(path)
    assert found.steps == tuple(steps[-8:])
    assert found.notes == tuple(notes[-4:])
    assert (found.pid, found.created, found.torn) == (os.getpid(), 5.0, 0)
    assert found.lost_steps == max(0, len(steps) - 8)
    writer.close()


def test_how_a_step_went_is_written_later(tmp_path: Path) -> None:
    writer = small(tmp_path / "r")
    writer.step(StepEntry(1.0, StepState.PLANNED, decodes=3))
    writer.step(StepEntry(2.0, StepState.PLANNED, decodes=4))
    writer.outcome(StepState.OUT_OF_MEMORY, 77)
    first, last = read_recording(tmp_path / "r").steps
    assert (first.state, last.state, last.duration_us, last.decodes) == (1, 3, 77, 4)
    writer.close()


def test_figures_that_do_not_fit_are_the_nearest_that_do() -> None:
    wild = StepEntry(1.0, StepState.PLANNED, decodes=1 << 40, waiting=-5, free_bytes=1 << 70)
    assert len(pack_step(1, wild)) == STEP_BYTES
    assert len(pack_note(1, Note(1.0, NoteKind.LOG, -1, 1 << 80, text="é" * 500))) == NOTE_BYTES
    assert unpack_note(pack_note(1, Note(1.0, NoteKind.LOG, text="é" * 500)))[1].text.startswith("ééé")


def test_a_torn_step_is_counted_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r"
    writer = small(path)
    for number in range(5):
        writer.step(StepEntry(float(number), StepState.LAUNCHED, decodes=number))
    data = bytearray(path.read_bytes())
    place = (64 << 10) + 4 * STEP_BYTES
    data[place + 8 : place + 20] = b"half written"
    (tmp_path / "torn").write_bytes(data)
    found = read_recording(tmp_path / "torn")
    assert [step.decodes for step in found.steps] == [0, 1, 2, 3]
    assert found.torn == 1
    writer.close()


def test_the_start_is_read_and_a_later_one_takes_its_place(tmp_path: Path) -> None:
    writer = small(tmp_path / "r")
    assert read_recording(tmp_path / "r").start is None
    writer.start(START)
    assert read_recording(tmp_path / "r").start == START
    from dataclasses import replace

    larger = replace(START, kv_tokens=9999)
    writer.start(larger)
    assert read_recording(tmp_path / "r").start == larger
    huge = replace(START, settings=tuple((f"name{number}", "x" * 500) for number in range(200)))
    writer.start(huge)
    found = read_recording(tmp_path / "r").start
    assert found is not None
    assert 10 < len(found.settings) < 200
    writer.close()


def test_an_end_in_order_is_told_from_a_kill(tmp_path: Path) -> None:
    writer = open_recording(tmp_path / "r")
    assert not read_recording(tmp_path / "r").ended_in_order
    writer.close()
    assert read_recording(tmp_path / "r").ended_in_order


def test_at_most_16_mib(tmp_path: Path) -> None:
    open_recording(tmp_path / "r").close()
    assert (tmp_path / "r").stat().st_size <= 16 << 20
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o600


# -- files that are in the way -------------------------------------------------------------------------------------


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    writer = open_recording(tmp_path / "r")
    with pytest.raises(RecordingInUse, match="another process is writing it"):
        open_recording(tmp_path / "r")
    code = f"from pathlib import Path; from brim.record.writer import *; open_recording(Path({str(tmp_path / 'r')!r}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "RecordingInUse" in other.stderr
    writer.close()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from brim.record.writer import *\n"
        f"path = Path({str(tmp_path / 'r')!r}); writer = open_recording(path)\n"
        "heard, said = os.pipe(); child = os.fork()\n"
        "if child == 0: os.write(said, b'1'); time.sleep(20); os._exit(0)\n"
        "os.read(heard, 1); writer.close(); open_recording(path).close(); os.kill(child, 9); print('open again')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "open again"


def test_what_is_to_be_explained_is_not_overwritten(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        writer = open_recording(tmp_path / "r")
        writer.step(StepEntry(1.0, StepState.LAUNCHED, decodes=number))
        writer.close()
    kept = [tmp_path / "r", *(tmp_path / f"r.{number}" for number in range(1, KEPT))]
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert [read_recording(path).steps[0].decodes for path in kept] == list(range(KEPT + 2, 2, -1))


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidRequest, match="no recording"):
        open_recording(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_keeps_the_last_few_and_those_in_use(tmp_path: Path) -> None:
    used = open_recording(tmp_path / f"a{SUFFIX}")
    for number in range(KEPT + 4):
        path = tmp_path / f"serve-{number}{SUFFIX}"
        open_recording(path).close()
        os.utime(path, (1000 + number, 1000 + number))
    os.utime(used.path, (1, 1))
    newest = open_in_folder(tmp_path, "serve")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert used.path.name in left
    assert newest.path.name in left
    assert len(left) == KEPT + 1
    used.close()
    newest.close()


def test_a_full_disk_refuses_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InvalidRequest, match="No space left"):
        open_recording(tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_the_system_refuses_at_the_start(tmp_path: Path) -> None:
    code = (
        "import resource, signal; from pathlib import Path; from brim.record.writer import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        f"open_recording(Path({str(tmp_path / 'r')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "cannot be written (File too large)" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_files_of_other_versions_and_damaged_ones_say_so(tmp_path: Path) -> None:
    open_recording(tmp_path / "r").close()
    whole = bytearray((tmp_path / "r").read_bytes())
    for name, data, said in (
        ("newer", whole[:8] + b"\x02" + whole[9:], "version 2, and this Brim reads version 1"),
        ("header", whole[:20] + b"\xff" + whole[21:], "header is damaged"),
        ("short", whole[:20], "cut off"),
        ("other", b"something else entirely, and long enough to be read as a header", "no recording"),
        ("empty", b"", "cannot be read"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InvalidRequest, match=said):
            read_recording(tmp_path / name)


def test_of_a_cut_file_what_is_there_is_read(tmp_path: Path) -> None:
    writer = open_recording(tmp_path / "r")
    writer.start(START)
    for number in range(10):
        writer.step(StepEntry(1.0, StepState.LAUNCHED, decodes=number))
    (tmp_path / "cut").write_bytes((tmp_path / "r").read_bytes()[: (64 << 10) + 5 * STEP_BYTES + 17])
    found = read_recording(tmp_path / "cut")
    assert found.truncated
    assert [step.decodes for step in found.steps] == [0, 1, 2, 3, 4]
    assert found.start == START
    writer.close()


# -- SIGKILL -------------------------------------------------------------------------------------------------------

KILLS = """
import os, signal, sys
from pathlib import Path
from random import Random
from brim.record.entries import Note, NoteKind, StepEntry, StepState
from brim.record.layout import FileHeader
from brim.record.reader import read_recording
from brim.record.writer import RecordingWriter

def write(path, said):
    writer = RecordingWriter(path, FileHeader(os.getpid(), 1.0, 256, 64))
    number = 0
    while True:
        number += 1
        writer.step(StepEntry(1.0, StepState.PLANNED, decodes=number))
        os.write(said, number.to_bytes(8, "little"))  # this step was written
        writer.outcome(StepState.LAUNCHED, 5)
        if number % 3 == 0:
            writer.note(Note(1.0, NoteKind.STATE, text="x" * 100))

points = Random(36)
for run in range(100):
    path = Path(sys.argv[1]) / str(run)
    heard, said = os.pipe()
    child = os.fork()
    if not child:
        os.close(heard)
        write(path, said)
    os.close(said)
    with os.fdopen(heard, "rb") as pipe:
        numbers = pipe.read(8 * points.randint(1, 1000))
        os.kill(child, signal.SIGKILL)
        numbers += pipe.read()
    os.waitpid(child, 0)
    last = len(numbers) // 8
    found = read_recording(path)
    assert found.steps[-1].decodes in (last, last + 1), (last, found.steps[-3:])
    assert [one.decodes for one in found.steps] == list(range(found.steps[0].decodes, found.steps[-1].decodes + 1))
    assert found.torn <= 1 and not found.ended_in_order
    path.unlink()
    print(last)
"""


def test_after_a_sigkill_the_last_step_is_there(tmp_path: Path) -> None:
    """100 times, after a random number of steps, whatever the process is doing then."""
    done = subprocess.run([sys.executable, "-c", KILLS, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lasts = list(map(int, done.stdout.split()))
    assert len(lasts) == 100
    assert max(lasts) > 256  # some rings have come round
