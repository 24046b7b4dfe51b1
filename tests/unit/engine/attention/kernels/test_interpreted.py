"""The Triton kernels beside attention in float64, on tiny sizes in Triton's interpreter, which needs no GPU.

Skipped where Triton is not installed. The comparisons themselves are those of tests/gpu/check_attention.py; they run in
a process of their own, since the interpreter is chosen when Triton is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[5]


@pytest.mark.parametrize("kernel", ["store", "decode", "prefill"])
def test_agrees_with_float64(kernel: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, ROOT / "tests/gpu/check_attention.py", "--tiny", "--only", kernel, "--out", out],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.exists(), done.stdout + done.stderr
    checked = json.loads(out.read_text())["checked"]
    assert checked
    assert [row for row in checked if not row["ok"]] == []
    assert done.returncode == 0
