"""The console that reports are printed on."""

from __future__ import annotations

from rich.console import Console


class ReportConsole(Console):
    """Standard output. A reader that has gone is left to `main`, which ends quietly: rich would exit with 1."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
