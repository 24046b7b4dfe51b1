"""Mutated, cut and hostile files: a clear error or what could be read, in bounded time and memory."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from brim.errors import InputError
from brim.explain.explanation import explain
from brim.explain.readers.plain_pickle import NotPlain, read_plain
from tests.unit.explain.incidents import FOLDER

FEW, MANY = 150, 10_000
MOST_BYTES = 500 << 20
# Of this process alone: `ru_maxrss` begins with what the process had that started it.
PEAK_KIB = 'int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])'
MUTATES = f"""
import json, sys
from pathlib import Path
from tests.unit.explain.test_hostile import run_mutations
run_mutations(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
print(json.dumps({PEAK_KIB} * 1024))
"""


def snapshot(refused: bool = True) -> dict[str, object]:
    """As torch writes one."""
    block = {"address": 1, "size": 1 << 20, "state": "inactive", "frames": []}
    segment = {
        "device": 0,
        "total_size": 64 << 20,
        "allocated_size": 20 << 20,
        "active_size": 20 << 20,
        "blocks": [block],
    }
    frame = {"name": "_dummy_sampler_run", "filename": "/vllm/v1/worker/gpu_model_runner.py", "line": 7}
    event = {"action": "oom", "size": 1 << 30, "device_free": 4096, "frames": [frame]}
    return {"segments": [segment] * 4, "device_traces": [[event]] if refused else [[]]}


def seeds() -> list[bytes]:
    found = [path.read_bytes() for path in sorted(FOLDER.glob("*.log"))]
    found += [gzip.decompress(path.read_bytes()) for path in sorted(FOLDER.glob("*.gz"))[:4]]
    return [*found, *(pickle.dumps(snapshot(), protocol) for protocol in (2, 3, 4, 5))]


def mutated(data: bytes, numbers: Random) -> bytes:
    out = bytearray(data)
    for _ in range(numbers.randint(1, 8)):
        if not out:
            return bytes(out)
        place = numbers.randrange(len(out))
        kind = numbers.randrange(6)
        if kind == 0:
            out[place] = numbers.randrange(256)
        elif kind == 1:
            del out[place : place + numbers.randrange(1, 200)]
        elif kind == 2:
            out[place:place] = numbers.randbytes(numbers.randrange(1, 40))
        elif kind == 3:
            out[place:place] = out[place : place + numbers.randrange(1, 400)] * numbers.randrange(1, 20)
        elif kind == 4:
            out[place:place] = b"9" * numbers.randrange(1, 5000)
        else:
            del out[place:]
    return bytes(out)


def run_mutations(count: int, seed: int, folder: Path) -> None:
    numbers, originals, path, refused = Random(seed), seeds(), folder / "mutated", 0
    for number in range(count):
        path.write_bytes(mutated(originals[number % len(originals)], numbers))
        began = time.monotonic()
        try:
            json.dumps(explain([path]).to_json())
        except InputError:
            refused += 1  # in words; anything else ends this run
        assert time.monotonic() - began < 20, f"mutation {number} of seed {seed} takes too long"
    assert refused < count // 2  # most can be read


def run_in_a_process(count: int, seed: int, folder: Path) -> int:
    """The most memory that it took."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", MUTATES, str(count), str(seed), folder],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(json.loads(done.stdout.splitlines()[-1]))


def test_some_mutated_files_end_in_an_answer(tmp_path: Path) -> None:
    assert run_in_a_process(FEW, 36, tmp_path) < MOST_BYTES


@pytest.mark.soak
def test_ten_thousand_mutated_files_end_in_an_answer(tmp_path: Path) -> None:
    assert run_in_a_process(MANY, 1, tmp_path) < MOST_BYTES


def test_a_pickle_that_would_run_something_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Runs:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {marker}",)

    for protocol in (2, 3, 4, 5):
        data = pickle.dumps({"segments": [{"total_size": 1}], "more": Runs()}, protocol)
        with pytest.raises(NotPlain, match="not run"):
            read_plain(data)
        (tmp_path / "snapshot.pickle").write_bytes(data)
        found = explain([tmp_path / "snapshot.pickle"])
        assert any("not run" in line for line in found.unknown)
    assert not marker.exists()


def test_a_snapshot_is_read(tmp_path: Path) -> None:
    for protocol in (2, 3, 4, 5):
        assert read_plain(pickle.dumps(snapshot(), protocol)).roots == (snapshot(),)
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot(), 4))
    found = explain([tmp_path / "snapshot.pickle"])
    (refusal,) = found.incident.refusals
    assert (refusal.tried_bytes, refusal.free_bytes) == (1 << 30, 4096)
    assert (refusal.allocated_bytes, refusal.unused_bytes) == (80 << 20, 176 << 20)
    assert found.diagnosis.cause == "sampling"


def test_a_small_pickle_cannot_become_a_large_structure(tmp_path: Path) -> None:
    bomb = b"\x80\x04]" + b"}" * 3_000_000 + b"."
    assert "only its first" in read_plain(bomb).problem
    level = b"".join(b"]q" + bytes([n + 1]) + b"(" + (b"h" + bytes([n])) * 10 + b"e" for n in range(20))
    (tmp_path / "laughs").write_bytes(b"\x80\x02]q\x00" + level + b".")
    began = time.monotonic()
    assert explain([tmp_path / "laughs"]).unknown
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("empty", b"", "is empty"),
        ("gzip", b"\x1f\x8bnot really", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_file(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=said) as caught:
        explain([tmp_path / name])
    assert name in str(caught.value)


def test_a_long_file_without_lines_takes_little_memory(tmp_path: Path) -> None:
    """A sparse file: a line without an end, then a message."""
    path = tmp_path / "huge.log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(b"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    code = (
        "import sys; from pathlib import Path; from brim.explain.reading import read_incident\n"
        "found = len(read_incident([Path(sys.argv[1])]).refusals)\n"
        f"print(found, {PEAK_KIB})"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    refusals, peak_kib = map(int, done.stdout.split())
    assert refusals == 1
    assert peak_kib * 1024 < MOST_BYTES
