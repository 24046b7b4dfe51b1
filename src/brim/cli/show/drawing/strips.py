"""Strips under an axis: which layer, or which module of a layer, runs in which columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from brim.cli.show.drawing.areas import Chart
from brim.cli.show.drawing.svg import FAINT, SOFT, Box, line, rect, shortened, text, text_width
from brim.cli.show.palette import INK, PAPER

STRIP_HEIGHT = 18
_SIZE, _TURN = 11, -55
_FILLS = ("#eeeeee", FAINT)
_LEAST_NAME = 34  # pixels: in less, a shortened name says nothing
_LINE = 14  # pixels between rotated names


@dataclass(frozen=True, slots=True)
class ColumnRun:
    """Columns from `start` to before `end` that share a name."""

    name: str
    start: int
    end: int


def runs(names: Sequence[str]) -> list[ColumnRun]:
    """Neighbouring columns of one name, together."""
    found, start = [], 0
    for name, same in groupby(names):
        end = start + len(list(same))
        found.append(ColumnRun(name, start, end))
        start = end
    return found


def draw_strip(chart: Chart, found: Sequence[ColumnRun]) -> tuple[list[str], list[ColumnRun]]:
    """A strip with the names of runs, and the runs whose names have no room in it."""
    parts, unnamed = _bands(chart, found), []
    for run in found:
        room = chart.x(run.end) - chart.x(run.start) - 4
        if text_width(run.name, _SIZE) <= room or room >= _LEAST_NAME:
            parts.append(_name(chart, run, shortened(run.name, room, _SIZE), SOFT))
        elif run.name:
            unnamed.append(run)
    return parts, unnamed


def draw_numbers(chart: Chart, found: Sequence[ColumnRun], marked: int) -> list[str]:
    """A strip with the numbers of layers, of many only some; the run of the marked column is black."""
    parts, numbered = _bands(chart, found), [run for run in found if run.name]
    widths = sorted(chart.x(run.end) - chart.x(run.start) for run in numbered)
    wide = max((text_width(run.name, _SIZE) for run in numbered), default=0) + 4
    usual = widths[len(widths) // 2] if widths else wide
    stride = next((stride for stride in (1, 2, 5, 10, 20, 50) if usual * stride >= wide), 100)
    taken: list[float] = []
    for run in sorted(numbered, key=lambda run: not run.start <= marked < run.end):
        middle, is_marked = chart.x((run.start + run.end) / 2), run.start <= marked < run.end
        if is_marked:
            parts.append(_band(chart, run, INK))
        fits = all(abs(middle - other) >= wide for other in taken)
        if is_marked or (fits and int(run.name) % stride == 0):
            taken.append(middle)
            parts.append(_name(chart, run, run.name, PAPER if is_marked else SOFT))
    return parts


def _bands(chart: Chart, found: Sequence[ColumnRun]) -> list[str]:
    return [_band(chart, run, _FILLS[number % 2]) for number, run in enumerate(found) if run.name]


def _band(chart: Chart, run: ColumnRun, fill: str) -> str:
    left, right = chart.x(run.start), chart.x(run.end)
    return rect(Box(left, chart.box.bottom + 4, right - left, STRIP_HEIGHT), fill)


def _name(chart: Chart, run: ColumnRun, name: str, fill: str) -> str:
    middle = chart.x((run.start + run.end) / 2)
    return text(middle, chart.box.bottom + 17, name, size=_SIZE, anchor="middle", fill=fill)


def draw_rotated_names(chart: Chart, found: Sequence[ColumnRun], top: float, length: float) -> list[str]:
    """Names under their columns, in the order of the longest runs, where they do not touch another's."""
    parts: list[str] = []
    taken: list[float] = []
    for run in sorted(found, key=lambda run: (run.start - run.end, run.start)):
        x = chart.x((run.start + run.end) / 2)
        if any(abs(x - other) < _LINE for other in taken):
            continue
        taken.append(x)
        name = shortened(run.name, min(length, (x - 8) / 0.6), _SIZE)
        parts.append(line(x, chart.box.bottom + 4 + STRIP_HEIGHT, x, top, SOFT, width=0.7))
        parts.append(text(x + 3, top + 9, name, size=_SIZE, anchor="end", fill=SOFT, rotated=_TURN))
    return parts
