"""The Triton kernels in Triton's interpreter: each against float64, whole steps against the reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.triton_interpreter import ROOT, interpreted, needs_interpreter

pytestmark = needs_interpreter
pytest.importorskip("torch")


every_third_or_all = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])


@every_third_or_all
@pytest.mark.parametrize("kernel", ["store", "decode", "prefill"])
def test_a_kernel_agrees_with_float64(kernel: str, every: int, tmp_path: Path) -> None:
    """Sizes for the interpreter of what tests/gpu/check_attention.py checks on a GPU."""
    options = ("--tiny", "--only", kernel, "--every", str(every), "--out")
    result = interpreted("tests/gpu/check_attention.py", tmp_path / "out.json", *options)
    checked = result["checked"]
    assert {row["kernel"] for row in checked} == {kernel}
    assert [row for row in checked if not row["ok"]] == []


@every_third_or_all
def test_steps_agree_with_the_reference(every: int, tmp_path: Path) -> None:
    script = "tests/unit/engine/attention/kernels/interpreted_steps.py"
    steps = interpreted(script, tmp_path / "out.json", str(every))
    assert len(steps) > 20 // every
    assert [step for step in steps if not step["ok"]] == []
    assert {step["in_parts"] for step in steps} == {True, False}


def test_the_check_for_gpus_can_be_imported_without_one() -> None:
    """And knows what it would time there."""
    command = "from tests.gpu import check_attention as check; print(len({run.brief() for run in check.runs()}))"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
