"""The versions a trace is of, read without `importlib.metadata`: they are what it would say."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from brim.trace.versions import installed_version


@pytest.mark.parametrize("package", ["torch", "transformers", "pytest"])
def test_versions_are_those_of_the_packages_metadata(package: str) -> None:
    assert installed_version(package) == version(package)


def test_the_first_folder_of_the_path_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch-9.9.0+cu999.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_version("torch") == "9.9.0+cu999"
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "absent"), ""])
    assert installed_version("transformers") is None
