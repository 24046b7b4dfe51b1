"""The picture of a run of `brim bench`: tokens a second and memory over time, and latencies as shares of requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from brim.bench.report import Report, latency
from brim.cli.show.drawing.svg import FAINT, SOFT, Box, document, group, line, path, shortened, text
from brim.cli.show.palette import BLUE, GREEN, INK, ORANGE, VIOLET

WIDTH = 1200
_MARGIN, _LEFT, _RIGHT = 24, 90, 1176
_OVER_TIME, _GAP = 150, 62
_COLUMNS = 240  # of a chart over time, at most
_SHARES_HEIGHT = 190
_PLACES = 200  # points of a curve
_MARKED = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Axes:
    """A chart's box, and what its right and upper edges stand for."""

    box: Box
    across: float
    up: float

    def x(self, value: float) -> float:
        return self.box.left + min(value, self.across) * self.box.width / self.across

    def y(self, value: float) -> float:
        return self.box.bottom - min(value, self.up) * self.box.height / self.up


def load_svg(report: Report) -> str:
    """The run as an SVG document."""
    parts, top = _heading(report), 130.0
    parts.append(group("tokens", _rate_chart(report, Box(_LEFT, top, _RIGHT - _LEFT, _OVER_TIME))))
    top += _OVER_TIME + _GAP
    if report.memory:
        parts.append(group("memory", _memory_chart(report, Box(_LEFT, top, _RIGHT - _LEFT, _OVER_TIME))))
        top += _OVER_TIME + _GAP
    width = (_RIGHT - _LEFT - 2 * 80) / 3
    for number, (name, values, colour) in enumerate(_distributions(report)):
        box = Box(_LEFT + number * (width + 80), top, width, _SHARES_HEIGHT)
        parts.append(group(name.replace(" ", "-"), _shares_chart(name, values, colour, box)))
    return document(WIDTH, int(top + _SHARES_HEIGHT + 50), f"load of {report.model or report.server}", parts)


def _heading(report: Report) -> list[str]:
    answered, sent = len(report.answered), len(report.outcomes)
    rate = f"{report.tokens_per_second:,.0f} tokens/s"
    title = f"{report.model or report.server}: {rate}, {answered:,} of {sent:,} requests answered"
    errors = ", ".join(f"{times:,} × {kind}" for kind, times in report.errors.items()) or "no errors"
    return [
        text(_MARGIN, 40, shortened(title, WIDTH - 2 * _MARGIN, 22), size=22, bold=True),
        text(_MARGIN, 64, shortened(f"{report.load}, {report.seconds:,.1f} s; {errors}", 1150, 14), size=14, fill=SOFT),
    ]


def _distributions(report: Report) -> list[tuple[str, list[float], str]]:
    firsts = [one.first_token_seconds for one in report.outcomes if one.first_token_seconds is not None]
    return [
        ("first token", firsts, BLUE),
        ("between tokens", list(chain.from_iterable(one.gaps for one in report.outcomes)), ORANGE),
        ("whole answer", [one.seconds for one in report.answered], VIOLET),
    ]


def _rate_chart(report: Report, box: Box) -> list[str]:
    """Tokens a second, in columns of equal time."""
    columns = min(_COLUMNS, max(1, round(report.seconds * 4)))
    width = report.seconds / columns
    counts = [0] * columns
    for one in report.outcomes:
        at = one.first_token
        if at is None:
            continue
        for gap in chain((0.0,), one.gaps):
            at += gap
            counts[min(columns - 1, int(at / width))] += 1
    rates = [count / width for count in counts]
    axes = Axes(box, report.seconds, max(*rates, 1.0) * 1.1)
    edge = "".join(f"V{axes.y(rate):.1f}H{axes.x((number + 1) * width):.1f}" for number, rate in enumerate(rates))
    area = f"M{box.left:.1f} {box.bottom:.1f}{edge}V{box.bottom:.1f}Z"
    return [*_frame(axes, "Tokens of answers each second", _number), path(area, BLUE), _floor(box)]


def _memory_chart(report: Report, box: Box) -> list[str]:
    """KV blocks held, and above them those that keep prefixes."""
    points = report.memory
    axes = Axes(box, max(report.seconds, points[-1].at, 1e-9), max(1.0, float(points[-1].kv_blocks)))

    def area(values: Sequence[int]) -> str:
        steps = [f"L{axes.x(point.at):.1f} {axes.y(value):.1f}" for point, value in zip(points, values, strict=True)]
        return f"M{axes.x(points[0].at):.1f} {box.bottom:.1f}{''.join(steps)}V{box.bottom:.1f}Z"

    held = [point.kv_held for point in points]
    both = [point.kv_held + point.kv_cached for point in points]
    return [
        *_frame(axes, "KV blocks: held by requests (dark), and cached prefixes above them", _number),
        path(area(both), "#a9d8cb"),
        path(area(held), GREEN),
        _floor(box),
    ]


def _shares_chart(name: str, values: list[float], colour: str, box: Box) -> list[str]:
    """Which share took at most how long, with the percentiles marked."""
    found = latency(values)
    if found is None:
        return [text(box.left, box.top - 12, f"{name}: nothing came", size=14, bold=True)]
    ordered = sorted(values)
    axes = Axes(box, max(found.p99 * 1.25, 1e-6), 1.0)
    places = sorted({round(number * (len(ordered) - 1) / _PLACES) for number in range(_PLACES + 1)})
    steps = [f"L{axes.x(ordered[place]):.1f} {axes.y((place + 1) / len(ordered)):.1f}" for place in places]
    curve = f"M{axes.x(ordered[0]):.1f} {box.bottom:.1f}{''.join(steps)}"
    parts = [*_frame(axes, f"Time of a {name}" if name == "whole answer" else f"Time {_to(name)}", None)]
    parts.append(path(curve, "none", stroke=colour))
    for share, value in zip(_MARKED, (found.p50, found.p90, found.p99), strict=True):
        x, y = axes.x(value), axes.y(share / 100)
        parts.append(line(x, y, x, box.bottom, SOFT, width=0.8, dashes="3 3"))
        aside, anchor = (4, "start") if share == _MARKED[0] else (-4, "end")
        parts.append(text(x + aside, y + 14, f"p{share} {_time(value)}", size=11, anchor=anchor))
    return [*parts, _floor(box)]


def _to(name: str) -> str:
    return f"to the {name}" if name == "first token" else name


def _frame(axes: Axes, title: str, label: object) -> list[str]:
    """Title, lines behind the chart, and what its edges stand for."""
    box, parts = axes.box, []
    for share in (0.0, 0.5, 1.0):
        y = axes.y(axes.up * share)
        parts.append(line(box.left, y, box.right, y, FAINT))
        words = f"{share:.0%}" if label is None else _number(axes.up * share)
        parts.append(text(box.left - 8, y + 4, words, size=11, anchor="end", fill=SOFT))
    for share in (0.0, 0.5, 1.0):
        x = axes.x(axes.across * share)
        words = _time(axes.across * share) if share else "0"
        anchor = "end" if share == 1 else "middle"
        parts.append(text(x, box.bottom + 16, words, size=11, anchor=anchor, fill=SOFT))
    return [text(box.left - 66 if label else box.left, box.top - 12, title, size=14, bold=True), *parts]


def _floor(box: Box) -> str:
    return line(box.left, box.bottom, box.right, box.bottom, INK)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.2f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.0f} s"
