"""Fits on a shared budget, by the command: neighbours keep what they hold, and the report says who they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.cli.main import run
from brim.records.memory import MemoryReading
from brim.reserve.devices import Budget
from brim.reserve.hold import hold
from brim.reserve.ledger import Ledger
from brim.reserve.sizing import sizing
from brim.units import MIB

SMALL = ("--max-seqs", "2", "--batch-tokens", "64", "--max-len", "128", "--scaling", "off", "--canary", "1MiB")
LAB = "cpu:lab:32MiB"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path / "leases"))
    return tmp_path / "leases"


def fit(*options: str) -> int:
    return run(["fit", "brim-random", *SMALL, "--no-store", *options])


def fitted(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    capsys.readouterr()
    assert fit("--json", *options) == 0
    return dict(json.loads(capsys.readouterr().out))


def item(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in report["items"] if one["name"] == name)


def test_what_neighbours_hold_is_theirs(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    alone = fitted(capsys, "--memory", "20MiB")
    with hold(gpu=LAB, bytes="12MiB", role="embedder"):
        beside = fitted(capsys, "--device", LAB, "--expect-neighbours", "embedder")
        assert beside["kv_tokens"] == alone["kv_tokens"]
        assert beside["total_bytes"] == 32 * MIB
        assert item(beside, "neighbours") == {
            "name": "neighbours",
            "predicted_bytes": None,
            "measured_bytes": 12 * MIB,
            "note": f"embedder (pid {os.getpid()}) holds 12.0 MiB",
        }
        with Ledger(folder, "cpu:lab").opened() as page:
            assert [lease.role for lease in page.leases] == ["embedder"]  # the fit has ended, and its lease with it


def test_a_share_is_what_a_fit_has_alone(capsys: pytest.CaptureFixture[str]) -> None:
    alone = fitted(capsys, "--memory", "16MiB")
    assert fitted(capsys, "--device", LAB, "--share", "50%")["kv_tokens"] == alone["kv_tokens"]
    with sizing(Budget("cpu:lab", 32 * MIB), role="other llm") as other:
        other.hold(MemoryReading(32 * MIB, 0, 0, 16 * MIB, 0, 16 * MIB, 0))
        assert fitted(capsys, "--device", LAB)["kv_tokens"] == alone["kv_tokens"]  # never both the rest


def test_a_failure_names_the_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    with hold(gpu=LAB, bytes="28MiB", role="embedder"):
        assert fit("--device", LAB, "--quiet") == 1
        assert f"neighbours: embedder (pid {os.getpid()}) holds 28.0 MiB" in capsys.readouterr().err
        assert fit("--device", LAB, "--share", "1MiB", "--quiet") == 1  # not even the weights
        assert f"neighbours: embedder (pid {os.getpid()}) holds 28.0 MiB" in capsys.readouterr().err
    with hold(gpu=LAB, bytes="32MiB", role="embedder"):
        assert fit("--device", LAB, "--quiet") == 1
        assert "nothing of cpu:lab (32.0 MiB) is left for llm" in capsys.readouterr().err


def test_a_fit_waits_shows_it_and_names_who_is_late(capsys: pytest.CaptureFixture[str]) -> None:
    with hold(gpu=LAB, bytes="5MiB", role="tower", starting=True):
        assert fit("--device", LAB, "--wait-neighbours", "100ms", "--expect-neighbours", "2") == 2
    said = capsys.readouterr().err.splitlines()
    who = f"tower (pid {os.getpid()}), 1 more (not started)"
    late = f"after 0.1 s these are not ready on cpu:lab: {who}; start or end them, or wait longer"
    assert said == [f"brim: neighbours (waiting for {who})", f"brim fit: wait-neighbours: {late}"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--memory", "32MiB", "--share", "0.5"], "share: nobody shares this budget; name it"),
        (["--memory", "32MiB", "--expect-neighbours", "1"], "expect-neighbours: nobody shares this budget"),
        (["--device", LAB, "--share", "1.5"], "share '1.5' is not above 0 and at most 1"),
        (["--device", LAB, "--share", "0"], "share '0' is not above 0"),
        (["--device", LAB, "--share", "0MiB"], "share '0MiB' is nothing"),
        (["--device", LAB, "--share", "most"], "share 'most' is not a size"),
        (["--device", LAB, "--expect-neighbours", "a,,b"], "expect-neighbours 'a,,b': write roles"),
        (["--device", LAB, "--expect-neighbours", "99999"], "expect-neighbours '99999': write roles"),
        (["--device", LAB, "--wait-neighbours", "soon"], "wait-neighbours 'soon' is not a duration"),
    ],
)
def test_bad_options_are_one_line(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(*options) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
