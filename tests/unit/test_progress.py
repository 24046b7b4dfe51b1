"""Stages on standard error: the last line of a terminal, a line each in a log, or nothing."""

from __future__ import annotations

from io import StringIO

import pytest

from brim.progress import showing
from brim.records.progress import Progress, Stage

STAGES = (
    Stage("load", "weights", 0, 200),
    Stage("load", "weights", 200, 200),
    Stage("build", "graphs", 3, 35),
    Stage("predict"),
)


class Terminal(StringIO):
    """Standard error that is a terminal, or is not."""

    def __init__(self, looked_at: bool) -> None:
        super().__init__()
        self._looked_at = looked_at

    def isatty(self) -> bool:
        return self._looked_at


def shown(monkeypatch: pytest.MonkeyPatch, progress: Progress, terminal: bool) -> str:
    stream = Terminal(terminal)
    monkeypatch.setattr("sys.stderr", stream)
    with showing(progress) as told:
        for stage in STAGES:
            told(stage)
    return stream.getvalue()


def test_a_stage_in_words() -> None:
    assert [str(stage) for stage in STAGES] == [
        "load (weights): 0 of 200",
        "load (weights): 200 of 200",
        "build (graphs): 3 of 35",
        "predict",
    ]


@pytest.mark.parametrize(("progress", "terminal"), [(None, False), (False, False), (False, True)])
def test_nothing_is_shown_without_a_terminal_or_when_switched_off(
    monkeypatch: pytest.MonkeyPatch, progress: Progress, terminal: bool
) -> None:
    assert shown(monkeypatch, progress, terminal) == ""


@pytest.mark.parametrize("progress", [None, True])
def test_a_log_has_lines_about_a_download(monkeypatch: pytest.MonkeyPatch, progress: Progress) -> None:
    """It may take an hour, in which a log would have nothing to show."""
    stages = [Stage("download", f"a/b, {done} of 2 files", done << 20, 2 << 20, in_bytes=True) for done in (0, 1, 1)]
    monkeypatch.setattr(f"{__name__}.STAGES", stages)
    assert shown(monkeypatch, progress, False) == (
        "brim: download (a/b, 0 of 2 files): 0 B of 2.0 MiB\nbrim: download (a/b, 1 of 2 files): 1.0 MiB of 2.0 MiB\n"
    )


def test_a_log_has_a_line_for_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, True, False) == "brim: load (weights)\nbrim: build (graphs)\nbrim: predict\n"


@pytest.mark.parametrize("progress", [None, True])
def test_a_terminal_shows_one_line_and_is_left_empty(monkeypatch: pytest.MonkeyPatch, progress: Progress) -> None:
    monkeypatch.setenv("TERM", "xterm")
    written = shown(monkeypatch, progress, True)
    assert "\n" not in written
    assert "brim: load (weights): 0 of 200" in written
    assert "brim: build (graphs): 3 of 35" in written
    assert "200 of 200" not in written  # within the same tenth of a second
    assert written.endswith("\r\x1b[2K")


def test_a_line_is_no_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal(True)
    monkeypatch.setattr("sys.stderr", stream)
    with showing(None) as told:
        told(Stage("stress", "a step with a name that goes on and on"))
        assert "brim: stress (a step)"[:19] in stream.getvalue()
        assert "with a name" not in stream.getvalue()


def test_a_failure_leaves_the_terminal_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal(True)
    monkeypatch.setattr("sys.stderr", stream)

    def fails() -> None:
        with showing(None) as told:
            told(Stage("load"))
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fails()
    assert stream.getvalue().endswith("\r\x1b[2K")


def test_a_process_without_standard_error_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    for progress in (None, True, False):
        with showing(progress) as told:
            told(Stage("load"))


def test_a_function_gets_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Stage] = []
    assert shown(monkeypatch, heard.append, True) == ""
    assert heard == list(STAGES)
