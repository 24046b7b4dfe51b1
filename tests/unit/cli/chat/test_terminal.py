"""`brim chat` in a terminal: history, editing keys, interrupts, the gauge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.cli.chat.gauge import bar
from brim.cli.chat.reading import Terminal

prompt_toolkit = pytest.importorskip("prompt_toolkit")

UP, CTRL_A, CTRL_C, CTRL_D = "\x1b[A", "\x01", "\x03", "\x04"


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_CACHE", str(tmp_path))


def typed(keys: str) -> list[str]:
    """The lines that a terminal reads."""
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    def lines() -> Iterator[str]:
        with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
            pipe.send_text(keys)
            yield from Terminal(lambda: "the memory", [])

    return list(lines())


def test_lines_until_the_end() -> None:
    assert typed(f"Hello\nHow are you?\n{CTRL_D}") == ["Hello", "How are you?"]


def test_keys_edit_the_line() -> None:
    assert typed(f"Ada{CTRL_A}Hello \n{CTRL_D}") == ["Hello Ada"]


def test_the_commands_of_this_conversation_are_completed() -> None:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    session = Terminal(lambda: "the memory", ["/usage", "/undo"])._session
    for start, wanted in (("/us", ["/usage"]), ("/u", ["/usage", "/undo"]), ("/sav", [])):
        found = session.completer.get_completions(Document(start), CompleteEvent())
        assert [one.text for one in found] == wanted


def test_an_interrupt_drops_the_line_and_not_the_conversation() -> None:
    assert typed(f"never mind{CTRL_C}Hello\n{CTRL_D}") == ["Hello"]


def test_what_was_typed_earlier_is_found_again() -> None:
    typed(f"first\n{CTRL_D}")
    assert typed(f"{UP}\n{CTRL_D}") == ["first"]


@pytest.mark.parametrize(("share", "full"), [(-1, 0), (0, 0), (0.5, 10), (1, 20), (3, 20)])
def test_a_bar_has_always_its_width(share: float, full: int) -> None:
    assert bar(share) == "█" * full + "░" * (20 - full)
