"""The Triton kernels in Triton's interpreter: each against float64, whole steps against the reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.triton_interpreter import ROOT, interpreted, needs_interpreter

pytestmark = needs_interpreter
pytest.importorskip("torch")


@pytest.mark.parametrize("kernel", ["store", "decode", "prefill"])
def test_a_kernel_agrees_with_float64(kernel: str, tmp_path: Path) -> None:
    """Sizes for the interpreter of what tests/gpu/check_attention.py checks on a GPU."""
    result = interpreted("tests/gpu/check_attention.py", tmp_path / "out.json", "--tiny", "--only", kernel, "--out")
    checked = result["checked"]
    assert {row["kernel"] for row in checked} == {kernel}
    assert [row for row in checked if not row["ok"]] == []


def test_steps_agree_with_the_reference(tmp_path: Path) -> None:
    steps = interpreted("tests/unit/engine/attention/kernels/interpreted_steps.py", tmp_path / "out.json")
    assert len(steps) > 20
    assert [step for step in steps if not step["ok"]] == []
    assert {step["in_parts"] for step in steps} == {True, False}


def test_the_check_for_gpus_can_be_imported_without_one() -> None:
    """And knows what it would time there."""
    command = "from tests.gpu import check_attention as check; print(len({run.brief() for run in check.runs()}))"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
