"""Brim's name where things are installed, and the commands that its errors print."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from brim.install import DISTRIBUTION, command_for, install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def noted(url: str, **how: object) -> str:
    return json.dumps({"url": url, **how})


def test_the_name_is_the_project_s() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert PROJECT["scripts"] == {"brim": "brim.cli.main:main"}


def test_extras_refer_to_extras_that_exist() -> None:
    own = re.compile(rf"{DISTRIBUTION}\[(\w+)\]$")
    referred = {found[1] for needs in EXTRAS.values() for one in needs if (found := own.match(one))}
    assert {"engine", "serve", "hub"} <= referred <= set(EXTRAS)
    assert not [one for needs in EXTRAS.values() for one in needs if re.match(r"brim\b(?!-llm)", one)]


def test_no_text_names_the_distribution_by_itself() -> None:
    """What users are told to install is made in one place, and works where they are."""
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js"), *(ROOT / "src").rglob("*.html")]
    named = re.compile(r"pip install (?:-\S+ )*['\"`]?brim")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if named.search(line)
    ]
    assert len(sources) > 300
    assert found == []


def test_extras_that_errors_name_exist() -> None:
    asked = {
        extra
        for path in (ROOT / "src").rglob("*.py")
        for extra in re.findall(r"install_command\([\"'](\w+)[\"']\)|the extra '(\w+)'", path.read_text("utf-8"))
        for extra in extra
        if extra
    }
    assert {"engine", "serve", "vllm", "ray", "gateway", "hub", "chat", "vision"} <= asked <= set(EXTRAS)


def test_from_an_index_it_is_the_name() -> None:
    assert command_for("serve", None, None) == "pip install 'brim-llm[serve]'"


def test_a_clone_is_named_by_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "it's a clone %20"
    folder.mkdir()
    copied = command_for("serve", noted(folder.as_uri(), dir_info={}), None)
    edited = command_for("serve", noted(folder.as_uri(), dir_info={"editable": True}), None)
    assert shlex.split(copied) == ["pip", "install", f"{folder}[serve]"]
    assert shlex.split(edited) == ["pip", "install", "-e", f"{folder}[serve]"]


def test_a_clone_that_is_gone_is_not_named(tmp_path: Path) -> None:
    gone = noted((tmp_path / "gone").as_uri(), dir_info={})
    assert command_for("serve", gone, None) == "pip install 'brim-llm[serve]'"
    assert command_for("serve", gone, tmp_path) == f"pip install -e '{tmp_path}[serve]'"


def test_a_repository_is_named_with_its_commit() -> None:
    url = noted("https://example.org/brim.git", vcs_info={"vcs": "git", "commit_id": "abc123"})
    assert command_for("hub", url, None) == "pip install 'brim-llm[hub] @ git+https://example.org/brim.git@abc123'"


def test_a_wheel_is_named_by_its_address(tmp_path: Path) -> None:
    wheel = tmp_path / "brim_llm-0.1.0-py3-none-any.whl"
    url = noted(wheel.as_uri(), archive_info={})
    assert command_for("hub", url, None) == "pip install 'brim-llm[hub]'"
    wheel.touch()
    assert command_for("hub", url, None) == f"pip install 'brim-llm[hub] @ {wheel.as_uri()}'"


def test_here_it_is_this_clone() -> None:
    assert shlex.split(install_command("serve")) == ["pip", "install", "-e", f"{ROOT}[serve]"]


def test_the_wheel_has_the_name_the_extras_and_the_command(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the backend that builds is in locks/test.txt")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as files:
        names = files.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        said = message_from_bytes(files.read(metadata))
        scripts = files.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert said["Name"] == DISTRIBUTION
    assert wheel.name.startswith("brim_llm-")
    assert set(said.get_all("Provides-Extra", [])) == set(EXTRAS)
    assert "brim = brim.cli.main:main" in scripts
    assert "brim = brim.vllm.plugin:announce_gauges" in scripts
    assert {"brim/install.py", "brim/py.typed", "brim/model/catalogue.json"} <= set(names)
    assert not [name for name in names if not name.startswith(("brim/", "brim_llm-"))]
