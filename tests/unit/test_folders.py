from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from brim.folders import curves_folder, fits_folder, leases_folder

if TYPE_CHECKING:
    import pytest


def test_the_folder_of_brim_then_that_of_the_user_then_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert (curves_folder(), fits_folder()) == (Path("/own/curves"), Path("/own/fits"))
    monkeypatch.setenv("BRIM_CACHE", "")
    assert curves_folder() == Path("/xdg/brim/curves")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert curves_folder() == Path("/somebody/.cache/brim/curves")


def test_leases_are_where_every_process_of_the_user_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRIM_LEASES", raising=False)
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/5")
    assert leases_folder() == Path(f"/tmp/brim-{os.getuid()}")
    monkeypatch.setenv("BRIM_LEASES", "/own/leases")
    assert leases_folder() == Path("/own/leases")
