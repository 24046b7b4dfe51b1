"""What the README shows is what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brim.cli.main import run

README = Path(__file__).parents[2] / "README.md"


def shown_commands() -> list[tuple[str, list[str]]]:
    """Each `brim plan` of the README, and the lines below it; `…` stands for lines that are left out."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    commands = [part for block in blocks for part in block.split("$ ") if part.startswith("brim plan")]
    return [(first, rest) for first, *rest in (command.rstrip().splitlines() for command in commands)]


def test_the_readme_shows_a_plan() -> None:
    assert shown_commands()


@pytest.mark.parametrize(("command", "shown"), shown_commands())
def test_what_the_readme_shows_is_printed(command: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()[1:]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for line in shown:
        if line != "…":
            assert line in printed, f"run `{command}` again and copy its output"
            printed = printed[printed.index(line) + 1 :]


def test_every_page_that_is_linked_is_there() -> None:
    linked = set(re.findall(r"\]\((?!https?:)([^)#]+)", README.read_text(encoding="utf-8")))
    assert linked
    assert sorted(name for name in linked if not (README.parent / name).exists()) == []
