"""Folders of compilers that cannot be written are replaced for the time of a command."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.cli.compiler_caches import TORCH, TRITON, usable_compiler_caches

if TYPE_CHECKING:
    import pytest


def test_folders_that_can_be_written_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    for variable in (TORCH, TRITON):
        monkeypatch.delenv(variable, raising=False)
    said: list[str] = []
    with usable_compiler_caches(said.append):
        assert TRITON not in os.environ
        assert TORCH not in os.environ
    assert said == []


def test_a_file_in_the_place_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = tmp_path / "file"
    nowhere.touch()
    monkeypatch.setenv(TORCH, str(nowhere / "torch"))
    monkeypatch.setenv("TRITON_HOME", str(nowhere))
    monkeypatch.delenv(TRITON, raising=False)
    said: list[str] = []
    with usable_compiler_caches(said.append):
        made = [Path(os.environ[variable]) for variable in (TORCH, TRITON)]
        for folder in made:
            (folder / "kernel").write_bytes(b"x")
    assert [line.split()[1] for line in said] == [TRITON, TORCH]
    assert all("Not a directory" in line for line in said)
    assert not any(folder.exists() for folder in made)
    assert os.environ[TORCH] == str(nowhere / "torch")
    assert TRITON not in os.environ


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "full"
    really = tempfile.TemporaryFile

    def opened(**options: Any) -> Any:
        if options["dir"] == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(**options)

    monkeypatch.setattr(tempfile, "TemporaryFile", opened)
    monkeypatch.setenv(TRITON, str(full))
    said: list[str] = []
    with usable_compiler_caches(said.append):
        assert not Path(os.environ[TRITON]).is_relative_to(tmp_path)
    assert "No space left on device" in said[0]
