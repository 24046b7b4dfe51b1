"""Scripts that run Brim's kernels in Triton's interpreter, which needs no GPU, each in a process of its own.

Triton decides when it is imported whether it interprets, and torch's compiler imports it too: a test's own process may
have done so already, and must not compile with an interpreter later.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SECONDS = 600  # a process that hangs; together they take about one minute of one core


def _release(package: str) -> tuple[int, int] | None:
    try:
        major, minor = version(package).split(".")[:2]
    except PackageNotFoundError:
        return None
    return int(major), int(minor)


def _missing() -> str:
    """Why kernels cannot be interpreted here; empty: they can."""
    triton, numpy = _release("triton"), _release("numpy")
    if triton is None or numpy is None:
        return "Triton is not installed"
    if triton < (3, 7) and numpy >= (2, 4):
        return "the interpreter of Triton 3.6 does not work with numpy 2.4"
    return ""


needs_interpreter = pytest.mark.skipif(bool(_missing()), reason=_missing() or "kernels can be interpreted")


def interpreted(script: str, out: Path, *arguments: str) -> Any:
    """What a script of this repository writes into `out` (JSON) when Triton interprets its kernels."""
    done = subprocess.run(
        [sys.executable, ROOT / script, *arguments, out],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert out.exists(), done.stdout + done.stderr
    return json.loads(out.read_text())
