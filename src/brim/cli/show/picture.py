"""The picture of a plan: the device as a bar that can be read without colour, over the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from brim.cli.show.answer import answer
from brim.cli.show.drawing.areas import round_ticks
from brim.cli.show.drawing.svg import SOFT, Box, document, group, line, path, rect, shortened, text, text_width
from brim.cli.show.palette import GREEN, INK, MISSING, ink_on, item_colour, item_keys
from brim.records.plan import MemoryPlan
from brim.units import format_bytes

WIDTH = 1200
_MARGIN, _LINE = 24, 26
_BAR = Box(_MARGIN, 132, WIDTH - 2 * _MARGIN, 56)
_NAME, _SIZE, _KEY = 14, 12, 12  # sizes of text
_APART = 16  # pixels between key letters above the bar


@dataclass(frozen=True, slots=True)
class Segment:
    """A line item's place in the bar."""

    name: str
    key: str
    bytes: int
    box: Box

    @property
    def middle(self) -> float:
        return self.box.left + self.box.width / 2


def plan_svg(plan: MemoryPlan) -> str:
    """The plan as an SVG document."""
    device = plan.device.name if plan.ranks == 1 else f"{plan.ranks} × {plan.device.name}"
    keys = item_keys(item.name for item in plan.items)
    rows = sum(item.bytes > 0 for item in plan.items)
    ledger = _BAR.bottom + (84 if plan.shortfall_bytes else 54)
    parts = [
        *_heading(plan, device),
        group("bar", _bar(plan, keys)),
        group("ledger", _ledger(plan, keys, ledger)),
    ]
    return document(WIDTH, int(ledger) + rows * _LINE + 8, f"{plan.model} on {device}", parts)


def _heading(plan: MemoryPlan, device: str) -> list[str]:
    verdict, colour = ("fits", GREEN) if plan.fits else ("does not fit", MISSING)
    title = shortened(f"{plan.model} on {device}: ", WIDTH - 2 * _MARGIN - text_width(verdict, 22), 22)
    return [
        f"{text(_MARGIN, 40, title, size=22, bold=True).removesuffix('</text>')}"
        f'<tspan fill="{colour}">{verdict}</tspan></text>',
        text(_MARGIN, 66, shortened(answer(plan)[0], WIDTH - 2 * _MARGIN, 14), size=14, fill=SOFT),
    ]


def _bar(plan: MemoryPlan, keys: dict[str, str]) -> list[str]:
    """The items side by side at their sizes, beyond the end of the device where they do not fit."""
    total = plan.device.total_bytes
    scale = _BAR.width / max(1, total + plan.shortfall_bytes)
    segments, left = [], _BAR.left
    for item in plan.items:
        if item.bytes > 0:
            box = Box(left, _BAR.top, min(item.bytes * scale, _BAR.right - left), _BAR.height)
            segments.append(Segment(item.name, keys[item.name], item.bytes, box))
            left = box.right
    return [
        *(part for segment in segments for part in _segment(segment)),
        *_leaders([segment for segment in segments if not _fits(segment.key, segment.box)]),
        *_ticks(total + plan.shortfall_bytes, scale),
        *_end(plan, _BAR.left + total * scale),
    ]


def _segment(segment: Segment) -> list[str]:
    """A box with the name and size, or the key letter, or nothing where not even that fits."""
    fill, size = item_colour(segment.name), format_bytes(segment.bytes)
    box = rect(segment.box, fill, stroke=INK, title=f"{segment.name}: {size}")
    ink, y = ink_on(fill), _BAR.top + _BAR.height / 2
    name = f"{segment.key}  {segment.name}"
    if _fits(name, segment.box, _NAME) and _fits(size, segment.box, _SIZE):
        return [
            box,
            text(segment.middle, y - 3, name, size=_NAME, anchor="middle", fill=ink, bold=True),
            text(segment.middle, y + 15, size, size=_SIZE, anchor="middle", fill=ink),
        ]
    if _fits(segment.key, segment.box):
        return [box, text(segment.middle, y + 5, segment.key, size=_KEY, anchor="middle", fill=ink, bold=True)]
    return [box]


def _fits(words: str, box: Box, size: int = _KEY) -> bool:
    return text_width(words, size) * 1.1 + 4 <= box.width  # bold is wider


def _leaders(segments: list[Segment]) -> list[str]:
    """Key letters above the bar, apart from each other, with lines to their segments."""
    parts, places = [], _apart([segment.middle for segment in segments])
    for segment, x in zip(segments, places, strict=True):
        parts.append(line(x, _BAR.top - 14, segment.middle, _BAR.top, INK, width=0.8))
        parts.append(text(x, _BAR.top - 18, segment.key, size=_KEY, anchor="middle", bold=True))
    return parts


def _apart(wanted: list[float]) -> list[float]:
    """Places near those wanted, in their order, at least `_APART` from each other and inside the bar."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + _APART) if places else max(place, _BAR.left + _APART / 2))
    limit = _BAR.right - _APART / 2
    for number in range(len(places) - 1, -1, -1):
        places[number] = min(places[number], limit)
        limit = places[number] - _APART
    return places


def _ticks(size: int, scale: float) -> list[str]:
    parts = []
    for tick, name in round_ticks(size):
        x = _BAR.left + tick * scale
        room = text_width(name, 11) / 2
        parts.append(line(x, _BAR.bottom, x, _BAR.bottom + 5, SOFT))
        parts.append(text(min(max(x, room), WIDTH - room), _BAR.bottom + 18, name, size=11, anchor="middle", fill=SOFT))
    return parts


def _end(plan: MemoryPlan, x: float) -> list[str]:
    """Where the device ends, and what would be needed beyond."""
    if not plan.shortfall_bytes:
        return [rect(_BAR, "none", stroke=INK)]
    y = _BAR.bottom + 36
    words = f"shortfall {format_bytes(plan.shortfall_bytes)}"
    end = f"end of the device, {format_bytes(plan.device.total_bytes)}"
    after = x + text_width(end, 13) < WIDTH - _MARGIN
    return [
        rect(_BAR, "none", stroke=MISSING, dashes="6 4"),
        line(x, _BAR.top - 40, x, y + 6, MISSING, width=3),
        text(x + 8 if after else x - 8, _BAR.top - 32, end, size=13, anchor="start" if after else "end", fill=MISSING),
        line(x, y, _BAR.right, y, MISSING, width=2),
        path(f"M{_BAR.right:.1f} {y:.1f}l-9 -5v10z", MISSING),
        text(_BAR.right, y + 18, words, size=13, anchor="end", fill=MISSING, bold=True),
    ]


def _ledger(plan: MemoryPlan, keys: dict[str, str], top: float) -> list[str]:
    parts, y = [], top
    for item in plan.items:
        if item.bytes <= 0:
            continue
        fill = item_colour(item.name)
        share = f"{item.bytes * 100 / max(1, plan.device.total_bytes):.1f} %"
        detail = shortened(f"{item.source}: {item.detail}", WIDTH - _MARGIN - 400, 13)
        parts += [
            rect(Box(_MARGIN, y - 14, 18, 18), fill, stroke=INK),
            text(_MARGIN + 9, y - 0.5, keys[item.name], size=_KEY, anchor="middle", fill=ink_on(fill), bold=True),
            text(_MARGIN + 28, y, shortened(item.name, 140, 14), size=14),
            text(290, y, format_bytes(item.bytes), size=14, anchor="end"),
            text(360, y, share, size=13, anchor="end", fill=SOFT),
            text(400, y, detail, size=13, fill=SOFT),
        ]
        y += _LINE
    return parts
