"""The Dockerfile is as a linter wants it, the compose file follows the specification, and both say what Brim takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from brim.cli.main import read_options
from tests.unit.deploy.dockerfile import findings, read_dockerfile

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "docker"
TEXT = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
FILE = read_dockerfile(TEXT)
TARGETS = ("cpu", "cuda")
COMMANDS = ["brim", "serve"]
HEALTH = "HEALTHCHECK --interval=10s --timeout=5s --start-period=20m --retries=3 \\\n    CMD"


def test_the_linter_has_nothing_to_say() -> None:
    assert findings(FILE, TARGETS) == []


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("python:3.12-slim-bookworm", "python:latest", "a base without a version"),
        ("python:3.12-slim-bookworm", "python", "a base without a version"),
        ("USER 10001:10001", "USER root", "it runs as root"),
        (
            "HEALTHCHECK --interval=10s --timeout=5s --start-period=20m --retries=3 \\\n    CMD",
            "ENV",
            "no health check",
        ),
        ("--from=wheel /wheels", "--from=wheels /wheels", "COPY from no earlier stage"),
        (" --constraint test-torch.txt --constraint constraints.txt", "", "pip without versions of the lock"),
        (" --no-install-recommends", "", "packages that were not asked for"),
        (" \\\n    && rm -rf /var/lib/apt/lists/*", "", "lists of packages stay"),
        ('CMD ["brim", "serve", "--host", "0.0.0.0"]', "CMD brim serve", "CMD is not a list"),
        ("NVIDIA_VISIBLE_DEVICES=all", "HF_TOKEN=abc", "a secret in the image"),
        ("ARG EXTRAS=", "ARG EXTRA=", "EXTRA is given and not used"),
        ("WORKDIR /cache", "WORKDIR cache", "WORKDIR is not absolute"),
    ],
)
def test_the_linter_finds(good: str, bad: str, said: str) -> None:
    assert good in TEXT
    assert any(said in one for one in findings(read_dockerfile(TEXT.replace(good, bad)), TARGETS))


def test_an_instruction_that_is_not_known_is_an_error() -> None:
    with pytest.raises(ValueError, match="ADD"):
        read_dockerfile(TEXT.replace("COPY pyproject", "ADD pyproject"))


def test_what_is_copied_is_there_and_not_ignored() -> None:
    lines = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    copied = {
        word.rstrip("/")
        for stage in FILE.stages.values()
        for one in stage.all("COPY")
        if "from" not in one.flags
        for word in one.words[:-1]
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("target", TARGETS)
def test_the_image_runs_a_server(target: str) -> None:
    found = FILE.instructions(target)
    command = next(one for one in reversed(found) if one.name == "CMD")
    assert command.words[:2] == COMMANDS
    options = read_options(command.words[1:])
    (exposed,) = (one.text for one in found if one.name == "EXPOSE")
    (check,) = (one.text for one in found if one.name == "HEALTHCHECK")
    assert options.port == int(exposed)
    assert f"127.0.0.1:{exposed}/health" in check
    (volume,) = (one.words for one in found if one.name == "VOLUME")
    environment = " ".join(one.text for one in found if one.name == "ENV")
    caches = re.findall(r"\b(?:BRIM_CACHE|HF_HOME|TRITON_CACHE_DIR|TORCHINDUCTOR_CACHE_DIR)=(\S+)", environment)
    assert len(caches) == 4
    assert all(folder.startswith(f"{volume[0]}/") for folder in caches)


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    return found


def problems(document: dict[str, Any]) -> list[str]:
    """What the specification's schema has against it; that one is older than the project's name in the file."""
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    schema = json.loads((ROOT / "tests" / "data" / "compose" / "schema.json").read_text(encoding="utf-8"))
    rest = {name: value for name, value in document.items() if name != "name"}
    return [one.message for one in jsonschema_rs.validator_for(schema).iter_errors(rest)]


def test_the_compose_file_follows_the_specification() -> None:
    assert problems(compose()) == []


def test_a_misspelt_field_is_found() -> None:
    document = compose()
    document["services"]["cpu"]["stop_grace_periods"] = document["services"]["cpu"].pop("stop_grace_period")
    assert len(problems(document)) == 1


@pytest.mark.parametrize("name", TARGETS)
def test_a_service_is_the_image_and_what_brim_serve_takes(name: str) -> None:
    document = compose()
    service = document["services"][name]
    build = service["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert build["target"] in FILE.stages
    words = [re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", word) for word in service["command"]]
    assert words[:2] == COMMANDS
    options = read_options(words[1:])
    assert int(service["stop_grace_period"].removesuffix("s")) > options.drain_seconds
    assert service["ports"] == [f"127.0.0.1:{options.port}:{options.port}"]
    (secret,) = service["secrets"]
    assert options.api_key_file == f"/run/secrets/{secret}"
    assert secret in document["secrets"]
    assert service["volumes"] == ["cache:/cache"]
    assert "cache" in document["volumes"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert "environment" not in service  # keys would be visible there
