"""The steps of the Dockerfile, run without Docker: a wheel, a fresh environment, and a server that gets healthy.

Stages share one folder that stands for `/`; what makes accounts and installs packages of the system is left out, and
torch comes from the index that is configured here.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from brim.serve.ranks import free_port
from tests.unit.deploy.dockerfile import Instruction, read_dockerfile

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
OF_THE_SYSTEM = ("groupadd", "apt-get")
ARGUMENTS = {"TORCH_INDEX": "", "EXTRAS": "serve,hub"}  # a torchvision from elsewhere would be for another torch
FOLDERS = re.compile(r"(?<![\w.:/-])/(opt/brim|src|wheels|cache)\b")
SECONDS = 900


@dataclass(slots=True)
class Build:
    """What the steps leave behind."""

    root: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def there(self, text: str) -> str:
        """Absolute folders of the image as folders here."""
        return FOLDERS.sub(lambda found: f"{self.root}/{found[1]}", text)

    def take(self, one: Instruction) -> None:
        if one.name == "WORKDIR":
            self.folder = Path(self.there(one.text))
            self.folder.mkdir(parents=True, exist_ok=True)
        elif one.name in ("ENV", "ARG"):
            for name, value in re.findall(r"(\w+)=(\S*)", one.text):
                given = ARGUMENTS.get(name, value) if one.name == "ARG" else value
                self.environment[name] = self.there(given).replace("$PATH", self.environment["PATH"])
        elif one.name == "COPY":
            self._copy(one)
        elif one.name == "RUN" and not any(word in one.text for word in OF_THE_SYSTEM):
            command = self.there(one.text).replace(" torch torchvision", " torch")
            self.done.append(command)
            subprocess.run(["sh", "-ec", command], cwd=self.folder, env=self.environment, check=True, timeout=SECONDS)

    def _copy(self, one: Instruction) -> None:
        *sources, target = one.words
        to = Path(self.there(target)) if target.startswith("/") else self.folder / target
        for source in sources:
            here = Path(self.there(source)) if "from" in one.flags else ROOT / source
            if here.is_dir() and here != to:
                shutil.copytree(here, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            elif here.is_file() and here.parent != to:
                to.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, to)


def healthy(command: list[str], environment: dict[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60).returncode == 0


def test_the_steps_make_a_server(tmp_path: Path) -> None:
    file = read_dockerfile(TEXT)
    base = tmp_path / "usr"
    subprocess.run([sys.executable, "-m", "venv", str(base)], check=True)
    build = Build(tmp_path, tmp_path, {**os.environ, "PATH": f"{base}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)})
    build.environment.pop("PYTHONPATH", None)
    for target in ("wheel", "environment-cpu", "cpu"):
        for one in file.instructions(target):
            build.take(one)
    assert len(build.done) == 6

    port = str(free_port())
    server = next(one for one in reversed(file.instructions("cpu")) if one.name == "CMD").words
    (check,) = (one for one in file.instructions("cpu") if one.name == "HEALTHCHECK")
    probe = Instruction("CMD", {}, check.text.partition("CMD ")[2].replace(":8000", f":{port}")).words
    environment = {**build.environment, "BRIM_API_KEY": "a-key"}
    found = shutil.which("brim", path=environment["PATH"])
    assert found == f"{tmp_path}/opt/brim/bin/brim"
    assert not healthy(probe, environment)
    with subprocess.Popen([*server, "--port", port], env=environment, cwd=build.folder) as process:
        try:
            until = time.monotonic() + 180
            while not healthy(probe, environment):
                assert process.poll() is None
                assert time.monotonic() < until, "it does not get healthy"
                time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert (tmp_path / "cache" / "brim" / "fits").is_dir()
    shutil.rmtree(tmp_path / "opt")  # a gigabyte
