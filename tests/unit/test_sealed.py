"""Entries on disk: whole, or not there."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from brim.sealed import read_entry, write_entry


def test_an_entry_comes_back(tmp_path: Path) -> None:
    write_entry(tmp_path / "folder" / "entry.json", {"a": 1})
    assert read_entry(tmp_path / "folder" / "entry.json") == {"a": 1}


def test_a_full_disk_keeps_the_old_entry_and_nothing_of_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_entry(tmp_path / "entry.json", {"a": 1})

    def full(body: Any, file: Any) -> None:
        file.write("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="No space"):
        write_entry(tmp_path / "entry.json", {"a": 2})
    monkeypatch.undo()
    assert read_entry(tmp_path / "entry.json") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["entry.json"]
