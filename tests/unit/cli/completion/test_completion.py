"""`brim completion` in real shells: what they offer after the beginning of a command line."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from brim.cli.completion.offered import offered_commands
from brim.cli.main import COMMANDS, command_parsers, run

Offer = Callable[[str], list[str]]

BASH = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _brim
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "source ./typed"
zpty -w -n shell "$1"$'\\t\\n'
zpty -r -m shell text "*<<*>>*" && print -r -- "$text"
"""
TYPED = """
PS1=; unsetopt prompt_sp; autoload -Uz compinit; compinit -u -D; source ./zsh
brim() { print -r -- "<<$*>>" }
"""


def needs(shell: str) -> str:
    return shutil.which(shell) or pytest.skip(f"no {shell} here")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "brim.cli.main", "completion", shell]
        (folder / shell).write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (folder / "typed").write_text(TYPED)
    (folder / "prompts of mine.txt").touch()
    return folder


def offered(command: list[str], folder: Path) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60, check=False)
    assert done.stderr == ""
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.fixture
def in_bash(scripts: Path) -> Offer:
    bash = needs("bash")

    def offer(line: str) -> list[str]:
        split = [part for word in line.split(" ") for part in re.split("(=)", word)]  # as bash does
        words_of_bash = " ".join(shlex.quote(word) for word in split)
        return offered([bash, "--norc", "-c", BASH.format(script=scripts / "bash", words=words_of_bash)], scripts)

    return offer


@pytest.fixture
def in_fish(scripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    fish = needs("fish")
    monkeypatch.setenv("HOME", str(tmp_path))

    def offer(line: str) -> list[str]:
        return offered([fish, "-N", "-c", f"source {scripts / 'fish'}; complete -C {shlex.quote(line)}"], scripts)

    return offer


@pytest.fixture(params=["in_bash", "in_fish"])
def offer(request: pytest.FixtureRequest) -> Offer:
    found: Offer = request.getfixturevalue(request.param)
    return found


def test_commands_are_offered(offer: Offer) -> None:
    assert offer("brim pl") == ["plan"]
    assert set(COMMANDS) <= set(offer("brim "))


def test_options_are_those_of_the_command(offer: Offer) -> None:
    assert offer("brim serve --api-key-f") == ["--api-key-file"]
    assert offer("brim gpus --api") == []
    assert offer("brim plan qwen3-8b --gpu h200 --max-l") == ["--max-len"]


def test_choices_are_offered(offer: Offer) -> None:
    assert offer("brim fit --dtype ") == ["auto", "bf16", "fp16", "fp32"]
    assert offer("brim plan qwen3-8b --engine sg") == ["sglang"]
    assert offer("brim completion f") == ["fish"]


def test_models_and_gpus_are_offered_by_name(offer: Offer) -> None:
    assert "qwen3-8b" in offer("brim plan qwen3-")
    assert "Qwen/Qwen3-8B" in offer("brim serve Qwen/Qwen3-8")
    assert offer("brim serve --draft brim-tiny-d") == ["brim-tiny-draft"]
    assert sorted(offer("brim plan qwen3-8b --gpu rtx-409")) == ["rtx-4090", "rtx-4090-d", "rtx-4090-laptop"]
    assert offer("brim leases --gpu rtx-409") == []


def test_files_are_offered_where_they_belong(offer: Offer) -> None:
    assert [one.replace("\\", "") for one in offer("brim generate --input prom")] == ["prompts of mine.txt"]
    assert [one.replace("\\", "") for one in offer("brim explain prom")] == ["prompts of mine.txt"]
    assert offer("brim serve --port prom") == []


def test_a_value_may_follow_a_sign(in_bash: Offer) -> None:
    assert in_bash("brim plan qwen3-8b --gpu=h20") == in_bash("brim plan qwen3-8b --gpu h20") != []
    assert in_bash("brim fit --dtype=fp3") == ["fp32"]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("brim pla", "plan"),
        ("brim plan qwen3-8b --engine sg", "plan qwen3-8b --engine sglang"),
        ("brim serve --api-key-f", "serve --api-key-file"),
        ("brim fit brim-tiny-d", "fit brim-tiny-draft"),
        ("brim explain prom", "explain prompts of mine.txt"),
    ],
)
def test_zsh_completes(scripts: Path, typed: str, completed: str) -> None:
    zsh = needs("zsh")
    done = subprocess.run(
        [zsh, "-f", "-c", ZSH, "-", typed], capture_output=True, text=True, cwd=scripts, timeout=60, check=False
    )
    assert f"<<{completed}" in done.stdout, done.stdout + done.stderr


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "--json"]) == 0
    commands = {one["name"]: one for one in json.loads(capsys.readouterr().out)["commands"]}
    assert list(commands) == list(COMMANDS)
    (gpu,) = [option for option in commands["plan"]["options"] if option["names"] == ["--gpu"]]
    assert "rtx-4090" in gpu["value"]["words"]
    assert gpu["repeatable"]


def test_a_shell_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion"]) == 2
    assert capsys.readouterr().err == "brim completion: shell is not given; write one of bash, zsh, fish\n"


def test_every_command_has_a_description_and_help_for_each_option() -> None:
    for one in offered_commands(command_parsers()):
        assert one.help
        assert not [option.names for option in one.options if not option.help]
