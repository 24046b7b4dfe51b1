"""Models that are part of Brim, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.model.packaged import packaged_folder, packaged_names
from brim.model.source import load_model

MIB = 1 << 20


def test_their_names() -> None:
    assert packaged_names() == ("brim-tiny", "brim-tiny-draft", "brim-tiny-vl")


@pytest.mark.parametrize("name", ["brim-", "brim-none", "..", "../models/brim-tiny", "brim-tiny/", "qwen3-8b", ""])
def test_other_names_have_no_folder(name: str) -> None:
    assert packaged_folder(name) is None


def test_a_tiny_model_and_a_draft_of_a_tenth() -> None:
    model, draft = load_model("brim-tiny"), load_model("brim-tiny-draft")
    assert model.max_positions >= 2048
    assert draft.max_positions == model.max_positions
    assert draft.vocab == model.vocab
    assert model.files_bytes is not None
    assert draft.files_bytes is not None
    assert 4e6 < model.files_bytes / 2 < 5e6
    assert 0.08 < draft.files_bytes / model.files_bytes < 0.12


def test_all_of_them_together_are_small() -> None:
    folder = packaged_folder("brim-tiny")
    assert folder is not None
    assert sum(file.stat().st_size for file in folder.parent.rglob("*") if file.is_file()) < 12e6


def test_a_path_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = packaged_folder("brim-tiny-draft")
    assert draft is not None
    (tmp_path / "brim-tiny").mkdir()
    (tmp_path / "brim-tiny" / "config.json").write_text((draft / "config.json").read_text())
    monkeypatch.chdir(tmp_path)
    assert len(load_model("brim-tiny").layers) == 3
