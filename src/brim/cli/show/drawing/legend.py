"""The legend beside a chart: what is alive at the peak, largest first, with sizes and shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from brim.cli.show.drawing.owners import Owner
from brim.cli.show.drawing.stacks import Band, Stack
from brim.cli.show.drawing.svg import FAINT, SOFT, Box, line, rect, shortened, text, text_width
from brim.cli.show.palette import INK, ink_on
from brim.units import format_bytes

_SMALL = 11
_SWATCH, _SIZES = 16, 132  # the swatch, and the room for a size and a share


def draw_legend(stack: Stack, fills: Mapping[Owner, str], keys: Mapping[Owner, str], box: Box, row: int) -> list[str]:
    """A row for each band; rows of 30 pixels and more have a second line with the shapes."""
    parts, y, total = [], box.top, max(1, stack.peak_bytes)
    alive = [band for band in stack.by_size if band.peak_bytes]
    gone = [band for band in stack.by_size if not band.peak_bytes]
    for band in alive:
        size = format_bytes(band.peak_bytes)
        parts += _row(band, fills, keys, Box(box.left, y, box.width, row), size, _share(band.peak_bytes, total))
        if row >= 30:
            parts.append(text(box.left + 24, y + 27, _shapes(band, box.width - 24), size=_SMALL, fill=SOFT))
        y += row
    parts.append(line(box.left, y, box.right, y, FAINT))
    parts.append(text(box.left + 24, y + 16, "all at the peak", bold=True))
    parts.append(text(box.right - 44, y + 16, format_bytes(total), anchor="end", bold=True))
    y += 32
    if gone:
        parts.append(text(box.left, y + 8, "not alive at the peak", size=11, fill=SOFT))
        y += 16
    for band in gone:
        parts += _row(band, fills, keys, Box(box.left, y, box.width, 20), f"≤ {format_bytes(band.most_bytes)}", "")
        y += 20
    return parts


def legend_height(stack: Stack, row: int) -> int:
    """What `draw_legend` needs."""
    gone = sum(not band.peak_bytes for band in stack.bands)
    return row * (len(stack.bands) - gone) + 32 + (16 + 20 * gone if gone else 0)


def _row(
    band: Band, fills: Mapping[Owner, str], keys: Mapping[Owner, str], box: Box, size: str, share: str
) -> list[str]:
    fill = fills[band.owner]
    swatch = Box(box.left, box.top, _SWATCH, _SWATCH)
    name = shortened(band.owner.name, box.width - 24 - _SIZES, 12)
    ink = INK if share else SOFT
    return [
        rect(swatch, fill, stroke=INK),
        text(box.left + 8, box.top + 12, keys.get(band.owner, ""), size=11, anchor="middle", fill=ink_on(fill)),
        text(box.left + 24, box.top + 12, name, fill=ink),
        text(box.right - 44, box.top + 12, size, anchor="end", fill=ink),
        text(box.right, box.top + 12, share, anchor="end", fill=SOFT),
    ]


def _shapes(band: Band, width: float) -> str:
    """The shapes of the tensors at the peak, largest first, as many as there is room for; equal ones are counted."""
    counts = Counter(made.shape for made in band.at_peak)
    shapes = [_shape(shape, count) for shape, count in counts.items()]
    for shown in range(len(shapes), 0, -1):
        rest = f" and {len(shapes) - shown} more" if shown < len(shapes) else ""
        words = ", ".join(shapes[:shown]) + rest
        if text_width(words, _SMALL) <= width:
            return words
    return shortened(shapes[0], width, _SMALL)


def _shape(shape: Sequence[int], count: int) -> str:
    dims = " × ".join(map(str, shape)) or "a number"
    return dims if count == 1 else f"{count} of {dims}"


def _share(size: int, total: int) -> str:
    return f"{size * 100 / total:.0f} %" if size * 200 >= total else "<1 %"
