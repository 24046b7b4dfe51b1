"""`brim hold` and `brim leases` as processes: signals, exit codes, what is left when they are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brim.cli.main import run
from brim.reserve.hold import hold
from brim.units import MIB

LAB = "cpu:lab:1GiB"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path / "leases"))
    return tmp_path / "leases"


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "brim.cli.main", "hold", "--gpu", LAB, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["leases", "--gpu", "cpu:lab", "--json"]) == 0
    return list(json.loads(capsys.readouterr().out))


def test_the_command_is_the_holder_until_it_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    with started("200MiB", "--", "sh", "-c", "echo there; exec sleep 60") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        (row,) = listed(capsys)
        assert (row["pid"], row["role"], row["promised_bytes"], row["state"]) == (process.pid, "sh", 200 * MIB, "held")
        assert set(row) == {
            *("pid", "role", "device", "promised_bytes", "held_bytes", "used_bytes", "state", "age_seconds"),
        }
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert listed(capsys) == []


def test_signals_and_exit_codes_are_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    script = "trap 'exit 7' TERM; echo there; while :; do sleep 0.02; done"
    with started("200MiB", "--role", "embedder", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert listed(capsys)[0]["role"] == "embedder"
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 7
    with started("200MiB", "--", "sh", "-c", "kill -PIPE $$; exit 3") as process:
        pass
    assert process.returncode == -signal.SIGPIPE  # Python ignores it; the command does not
    assert listed(capsys) == []


def test_a_hold_that_does_not_fit_starts_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    never = folder.parent / "never"
    with hold(gpu=LAB, bytes="900MiB", role="embedder"):
        with started("200MiB", "--", "touch", str(never)) as process:
            _, said = process.communicate()
        assert process.returncode == 1
        assert said == (
            "brim hold: touch wants 200.0 MiB of cpu:lab, and 124.0 MiB of 1.00 GiB are left: "
            f"the shortfall is 76.0 MiB (embedder (pid {os.getpid()}) holds 900.0 MiB)\n"
        )
        assert not never.exists()
        assert len(listed(capsys)) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", LAB, "5MiB"], "command is missing"),
        (["--gpu", LAB, "5MiB", "--"], "command is missing"),
        (["--gpu", LAB, "5MiB", "--", "no-such-program"], "command 'no-such-program' is not there"),
        (["--gpu", LAB], "size is missing"),
        (["--gpu", LAB, "5MiB", "--rolle", "x", "--", "true"], "no option of brim hold"),
        (["--gpu", LAB, "5MiB", "--role", "--", "true"], "expected one argument"),
        (["--gpu", LAB, "lots", "--", "true"], "size 'lots' is not a size"),
        (["--gpu", LAB, "1.5", "--", "true"], "size '1.5' is not whole bytes; give it a unit"),
        (["--gpu", LAB, "5MiB", "--role", "", "--", "true"], "role '' is not 1 to 60"),
        (["--gpu", LAB, "0", "--", "true"], "at least 1"),
        (["--gpu", "cpu:4GiB", "5MiB", "--", "true"], "needs a name"),
        (["--gpu", "rtx-4090", "5MiB", "--", "true"], "no device of this machine"),
    ],
)
def test_bad_holds_say_so_in_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hold", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1


def test_a_command_with_a_long_name_needs_a_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / ("n" * 70)
    program.symlink_to(sys.executable)
    assert run(["hold", "--gpu", LAB, "5MiB", "--", str(program)]) == 2
    assert "give --role NAME" in capsys.readouterr().err


def test_a_program_that_the_kernel_refuses_leaves_no_lease(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF but no program")
    broken.chmod(0o700)
    before = {one: signal.getsignal(one) for one in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        assert run(["hold", "--gpu", LAB, "5MiB", "--", str(broken)]) == 2
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert "cannot be run (Exec format error)" in capsys.readouterr().err
    assert listed(capsys) == []


def test_people_see_a_table_and_what_is_no_lease(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["leases"]) == 0
    assert capsys.readouterr().out == "no leases\n"
    with hold(gpu=LAB, bytes="200MiB", role="embedder"), hold(gpu="cpu:other:1GiB", bytes="1MiB", role="[tower]"):
        (folder / "cpu%3Alab" / "3-3-x.json").write_text("{", encoding="utf-8")
        assert run(["leases"]) == 0
        said = capsys.readouterr()
        rows = [line.split() for line in said.out.splitlines()]
        assert [row[:1] + row[2:6] for row in rows[1:]] == [
            ["cpu:lab", "embedder", "held", "200.0", "MiB"],
            ["cpu:other", "[tower]", "held", "1.0", "MiB"],
        ]
        assert "3-3-x.json: open to other users" in said.err
        assert "moved to" in said.err


def test_neither_command_imports_a_heavy_library() -> None:
    code = (
        "import sys; from brim.cli.main import run; run(['leases', '--json']); "
        "run(['hold', '--gpu', 'cpu:lab:1GiB', '2GiB', '--', 'true']); "
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub', 'rich'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
