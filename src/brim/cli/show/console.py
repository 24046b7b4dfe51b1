"""The console that reports are printed on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.measure import Measurement

if TYPE_CHECKING:
    from rich.table import Table

_WIDEST_TABLE = 1000


class ReportConsole(Console):
    """Standard output. A reader that has gone is left to `main`, which ends quietly: rich would exit with 1."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print_whole(self, table: Table) -> None:
        """A table in which nothing is cut, however narrow the terminal: names are there to be copied."""
        natural = Measurement.get(self, self.options.update(max_width=_WIDEST_TABLE), table).maximum
        self.width = max(self.width, natural)
        self.print(table, soft_wrap=True)
