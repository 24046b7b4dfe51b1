"""The picture of an incident: memory over time from a recording, with the refusals; of a log, its ledger as bars."""

from __future__ import annotations

from collections.abc import Sequence

from brim.cli.show import palette
from brim.cli.show.drawing.areas import round_ticks
from brim.cli.show.drawing.svg import FAINT, SOFT, Box, document, line, path, rect, shortened, text
from brim.explain.explanation import Explanation
from brim.record.entries import StepEntry, StepState
from brim.units import format_bytes

_WIDTH, _HEIGHT = 1000, 420
_BOX = Box(90, 90, 880, 250)
_MOST_POINTS = 800


def incident_svg(found: Explanation) -> str:
    title = f"{found.diagnosis.cause}: {found.diagnosis.why}"
    head = [
        text(24, 36, shortened(title, _WIDTH - 48, 18), size=18, bold=True),
        text(24, 58, shortened(", ".join(found.incident.sources), _WIDTH - 48, 12), size=12, fill=SOFT),
    ]
    recorded = next((one.recorded for one in found.incident.recordings if one.recorded.steps), None)
    body = (
        _bars(found)
        if recorded is None
        else _over_time(recorded.steps, recorded.start.total_bytes if recorded.start else 0)
    )
    return document(_WIDTH, _HEIGHT, title, [*head, *body])


def _over_time(steps: Sequence[StepEntry], total_bytes: int) -> list[str]:
    """Allocated and reserved memory of the last steps; refusals as lines."""
    shown = steps[-_MOST_POINTS:]
    top = max(total_bytes, max(step.reserved_bytes for step in shown), 1)
    first, last = shown[0].time, max(shown[-1].time, shown[0].time + 1e-3)

    def x(step: StepEntry) -> float:
        return _BOX.left + (step.time - first) / (last - first) * _BOX.width

    def y(size: int) -> float:
        return _BOX.bottom - min(1.0, size / top) * _BOX.height

    def area(sizes: Sequence[int]) -> str:
        points = "".join(f"L{x(step):.1f} {y(size):.1f}" for step, size in zip(shown, sizes, strict=True))
        return f"M{_BOX.left:.1f} {_BOX.bottom:.1f}{points}L{x(shown[-1]):.1f} {_BOX.bottom:.1f}Z"

    parts = []
    for size, name in round_ticks(top):
        parts.append(line(_BOX.left, y(size), _BOX.right, y(size), FAINT))
        parts.append(text(_BOX.left - 8, y(size) + 4, name, size=11, anchor="end", fill=SOFT))
    parts.append(path(area([step.reserved_bytes for step in shown]), palette.SAND, title="reserved"))
    parts.append(path(area([step.allocated_bytes for step in shown]), palette.BLUE, title="allocated"))
    refused = [step for step in shown if step.state is StepState.OUT_OF_MEMORY]
    parts += [line(x(step), _BOX.top, x(step), _BOX.bottom, palette.MISSING, width=1.5) for step in refused]
    legend = (("allocated", palette.BLUE), ("reserved and unused", palette.SAND), ("refused", palette.MISSING))
    for number, (name, fill) in enumerate(legend):
        parts.append(rect(Box(_BOX.left + number * 180, _BOX.bottom + 34, 12, 12), fill))
        parts.append(text(_BOX.left + number * 180 + 18, _BOX.bottom + 44, name, size=12))
    parts.append(text(_BOX.left, _BOX.bottom + 18, f"{len(shown):,} steps, {last - first:,.1f} s", size=11, fill=SOFT))
    return parts


def _bars(found: Explanation) -> list[str]:
    """What each part took, and what was planned as a mark."""
    rows = [row for row in found.ledger if row.took_bytes is not None]
    top = max((max(row.took_bytes or 0, row.should_bytes or 0) for row in rows), default=0)
    if not top:
        return [text(24, 110, "nothing in the files says how much memory was taken", size=13, fill=SOFT)]
    parts = []
    for number, row in enumerate(rows):
        place, took = 90 + number * 34, row.took_bytes or 0
        fill = palette.ITEM_COLOURS.get(row.name, palette.GREY)
        parts.append(text(200, place + 16, row.name, size=13, anchor="end"))
        parts.append(rect(Box(210, place, 560 * took / top, 22), fill))
        parts.append(text(780, place + 16, format_bytes(took), size=12))
        if row.should_bytes:
            at = 210 + 560 * row.should_bytes / top
            parts.append(line(at, place - 3, at, place + 25, palette.INK, width=2))
    return parts
