"""A stack of bytes as areas over an axis: ticks, labels on the areas that have room for them, and the peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from brim.cli.show.drawing.owners import Owner
from brim.cli.show.drawing.stacks import Stack
from brim.cli.show.drawing.svg import FAINT, SOFT, Box, line, path, rect, shortened, text, text_width
from brim.cli.show.palette import INK, PAPER, ink_on
from brim.units import GIB, KIB, MIB, format_bytes

_LABEL, _LABEL_ROOM = 12, 15  # size of a label, and the height it needs
_HEADROOM = 1.15  # for the words of the peak
_MOST_TICKS = 6
_FRAMED = 6  # pixels: a narrower column is marked by a line
_OUTLINED = 2  # pixels: in narrower columns, outlines would hide the areas


@dataclass(frozen=True, slots=True)
class Chart:
    """A stack in a box: bytes to pixels, columns to pixels."""

    stack: Stack
    box: Box
    top_bytes: int

    def x(self, column: float) -> float:
        return self.box.left + column * self.box.width / len(self.stack.operations)

    def y(self, size: float) -> float:
        return self.box.bottom - size * self.box.height / self.top_bytes

    def edges(self) -> list[list[float]]:
        """The upper edge of each band, and before them the axis: a height in pixels for every column."""
        columns = [accumulate(column) for column in zip(*(band.bytes for band in self.stack.bands), strict=True)]
        upper = [list(edge) for edge in zip(*columns, strict=True)]
        return [[self.box.bottom] * len(self.stack.operations), *([self.y(size) for size in edge] for edge in upper)]


def chart_of(stack: Stack, box: Box) -> Chart:
    return Chart(stack, box, max(1, int(stack.peak_bytes * _HEADROOM)))


def draw_areas(chart: Chart, fills: Mapping[Owner, str]) -> list[str]:
    """The areas, from the largest sum down: each is painted over the one that includes it."""
    edges, parts = chart.edges(), []
    stroke = PAPER if chart.x(1) - chart.x(0) >= _OUTLINED else "none"
    for band, edge in reversed(list(zip(chart.stack.bands, edges[1:], strict=True))):
        title = f"{band.owner.name}: {format_bytes(band.peak_bytes)} at the peak"
        parts.append(path(_steps(chart, edge), fills[band.owner], stroke=stroke, title=title))
    return parts


def _steps(chart: Chart, edge: Sequence[float]) -> str:
    """The outline of everything below an edge; columns of the same height are drawn as one."""
    bottom = chart.box.bottom
    drawn, shape = bottom, [f"M{chart.x(0):.1f} {bottom:.1f}"]
    for column, height in enumerate(edge):
        if abs(height - drawn) >= 0.05:
            shape.append(f"H{chart.x(column):.1f}V{height:.1f}")
            drawn = height
    return "".join([*shape, f"H{chart.box.right:.1f}V{bottom:.1f}Z"])


def draw_labels(chart: Chart, fills: Mapping[Owner, str], names: Mapping[Owner, Sequence[str]]) -> list[str]:
    """On each area the first of its names that has room there."""
    edges, parts = chart.edges(), []
    for number, band in enumerate(chart.stack.bands):
        for name in names[band.owner]:
            place = _room(chart, edges[number], edges[number + 1], text_width(name, _LABEL) + 6)
            if place is not None:
                x, y = place
                fill = ink_on(fills[band.owner])
                parts.append(text(x, y + _LABEL * 0.36, name, size=_LABEL, anchor="middle", fill=fill))
                break
    return parts


def _room(chart: Chart, lower: Sequence[float], upper: Sequence[float], width: float) -> tuple[float, float] | None:
    """The middle of the tallest rectangle of a width inside a band, beside the peak; None where no label would fit."""
    columns = len(lower)
    needed = max(1, -int(-width * columns // chart.box.width))
    best: tuple[float, float, float] | None = None
    for start in range(columns - needed + 1):
        if start <= chart.stack.peak < start + needed and needed > 1:
            continue
        floor, ceiling = min(lower[start : start + needed]), max(upper[start : start + needed])
        if floor - ceiling >= _LABEL_ROOM and (best is None or floor - ceiling > best[0] + 0.1):
            best = floor - ceiling, chart.x(start + needed / 2), (floor + ceiling) / 2
    return None if best is None else best[1:]


def draw_bytes_axis(chart: Chart) -> list[str]:
    """Round sizes with faint lines behind the areas."""
    parts = []
    for size, name in round_ticks(chart.top_bytes):
        y = chart.y(size)
        parts.append(line(chart.box.left, y, chart.box.right, y, FAINT))
        parts.append(text(chart.box.left - 8, y + 4, name, size=11, anchor="end", fill=SOFT))
    return parts


def round_ticks(top: int) -> list[tuple[int, str]]:
    """Round sizes from zero to the top of an axis, and their names."""
    unit, name = next((one for one in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")) if top >= one[0]), (1, "B"))
    steps = (factor * 10.0**power for power in range(-1, 9) for factor in (1, 2, 5))
    step = next((step for step in steps if step * unit * _MOST_TICKS >= top), top / unit)
    count = int(top / (step * unit))
    return [(int(number * step * unit), f"{number * step:,g} {name}" if number else "0") for number in range(count + 1)]


def draw_peak(chart: Chart, words: str) -> list[str]:
    """The column of the peak framed, with its size and place in words."""
    left, right, top = chart.x(chart.stack.peak), chart.x(chart.stack.peak + 1), chart.y(chart.stack.peak_bytes)
    middle = (left + right) / 2
    before = middle - chart.box.left > chart.box.width / 2
    room = (right - chart.box.left if before else chart.box.right - left) - 8
    x, anchor = (right, "end") if before else (left, "start")
    if right - left >= _FRAMED:
        mark = rect(Box(left, top, right - left, chart.box.bottom - top), "none", stroke=INK)
    else:
        mark = line(middle, chart.box.bottom, middle, top, INK)
    pointer = path(f"M{middle:.1f} {top - 2:.1f}l-5 -8h10z", INK)
    return [mark, pointer, text(x, top - 15, shortened(words, room, 13), size=13, anchor=anchor, bold=True)]
