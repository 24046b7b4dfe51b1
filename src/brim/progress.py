"""The stages of a start, shown on standard error.

In: the caller's setting: None (show if standard error is a terminal; elsewhere, lines about downloads alone), True
(always: if it is not a terminal, a line for each stage), False (never), or a function that is called with every
`Stage`. Out: the function to report stages to. On a terminal they share its last line, which is cleared at the end.
There is no thread: a stage that hangs shows nothing new.

The one place outside `brim.cli` that looks at the process's environment: a start of several seconds should not be
silent when Brim is used from Python.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from brim.records.progress import DOWNLOAD, Progress, Stage, Told, silent

if TYPE_CHECKING:
    from rich.console import Console

_SECONDS_BETWEEN = 0.1  # two counts of the same stage


@contextmanager
def showing(progress: Progress) -> Iterator[Told]:
    """The function to report the stages of one start to; the display is cleared at the end."""
    if callable(progress):
        yield progress
        return
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    if progress is False or sys.stderr is None:
        yield silent
    elif not on_terminal:
        yield _Lines(sys.stderr.write, all_stages=bool(progress))
    else:
        from rich.console import Console

        line = _LastLine(Console(stderr=True, highlight=False))
        try:
            yield line
        finally:
            line.clear()


class _Lines:
    """A line for each stage, or for those that take minutes, for logs; counts are left out, but for bytes."""

    def __init__(self, write: Callable[[str], object], *, all_stages: bool) -> None:
        self._write = write
        self._all = all_stages
        self._said = ""

    def __call__(self, stage: Stage) -> None:
        if stage.title != self._said and (self._all or stage.phase == DOWNLOAD):
            self._said = stage.title
            with suppress(OSError):  # a log on a full disk
                self._write(f"brim: {stage if stage.in_bytes else stage.title}\n")


class _LastLine:
    """The last line of a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: Stage | None = None
        self._shown_at = 0.0

    def __call__(self, stage: Stage) -> None:
        now = time.monotonic()
        same = self._shown is not None and stage.title == self._shown.title
        if same and now - self._shown_at < _SECONDS_BETWEEN:
            return
        self.clear()
        text = f"brim: {stage}"[: self._console.width - 1]
        self._console.print(text, end="", markup=False, soft_wrap=True, style="dim")
        self._shown, self._shown_at = stage, now

    def clear(self) -> None:
        from rich.control import Control
        from rich.segment import ControlType

        if self._shown is not None:
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            self._shown = None
