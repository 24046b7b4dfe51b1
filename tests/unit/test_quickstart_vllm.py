"""The page for users of vLLM: its table names flags that exist, and its commands are read and print what it shows."""

from __future__ import annotations

import re
import shlex

import pytest

from brim.cli.main import command_parsers, read_options, run
from tests.flags.quickstart import PAGE, flags, rows

TEXT = PAGE.read_text(encoding="utf-8")
PARSERS = command_parsers()
CONSOLE = [line for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]


def options_of(command: str) -> set[str]:
    return set(PARSERS[command]._option_string_actions)


def test_every_flag_of_the_table_exists() -> None:
    assert len(rows()) > 25
    for of_vllm, plan, serve, said in rows():
        assert flags(of_vllm), "the first column is a flag of vLLM"
        assert set(flags(plan)) <= options_of("plan"), plan
        assert set(flags(serve)) <= options_of("serve"), serve
        assert set(flags(said)) <= options_of("serve") | options_of("plan"), said


def test_names_of_vllm_that_are_understood_are_those_of_the_table() -> None:
    """A flag of vLLM that a parser takes by its own name means the option beside it."""
    for of_vllm, plan, serve, _ in rows():
        for command, cell in (("plan", plan), ("serve", serve)):
            known = PARSERS[command]._option_string_actions
            for flag in (one for one in flags(of_vllm) if one in known and flags(cell)):
                assert known[flag].dest in {known[one].dest for one in flags(cell)}, (command, flag)


@pytest.mark.parametrize("line", [line[2:] for line in CONSOLE if line.startswith("$ brim")])
def test_every_command_is_read(line: str) -> None:
    read_options(shlex.split(line, comments=True)[1:])


def test_what_the_page_shows_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    begin = next(number for number, line in enumerate(CONSOLE) if line.startswith("$ brim plan"))
    assert run(shlex.split(CONSOLE[begin])[2:]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    shown = [line for line in CONSOLE[begin + 1 :] if line != "…"]
    shown = shown[: next(number for number, line in enumerate(shown) if line.startswith("$"))]
    assert len(shown) == 5
    for line in shown:
        assert line in printed


def test_pages_that_are_linked_are_there() -> None:
    linked = re.findall(r"\]\(([\w.]+)(?:#([\w-]+))?\)", TEXT)
    assert linked
    for page, section in linked:
        other = (PAGE.parent / page).read_text(encoding="utf-8")
        titles = [re.sub(r"[^\w -]", "", title) for title in re.findall(r"^#+ (.*)$", other, re.MULTILINE)]
        assert not section or section in [title.lower().replace(" ", "-") for title in titles], (page, section)
