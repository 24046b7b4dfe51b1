"""Another process of this interpreter."""

from __future__ import annotations

import subprocess
from pathlib import Path

from brim.cli.interpreter import module_command


def test_a_folder_of_that_name_in_the_working_directory_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "json"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('this is ./json')")
    ended = subprocess.run(
        module_command("json.tool"), cwd=tmp_path, input="{}", capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "{}\n", "")
