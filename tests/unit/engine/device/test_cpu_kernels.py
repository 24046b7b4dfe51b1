"""Kernels for the CPU: few are kept, unless the user says how many."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from brim.engine.device.cpu_kernels import keep_few_kernels

if TYPE_CHECKING:
    import pytest

OURS, TORCHS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"


def test_few_kernels_are_kept_unless_the_user_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OURS, "7")
    monkeypatch.setenv(TORCHS, "")  # restored at the end, whatever it was
    monkeypatch.delenv(TORCHS)
    keep_few_kernels()
    assert (os.environ[OURS], os.environ[TORCHS]) == ("7", "128")
