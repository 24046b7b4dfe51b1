"""SVG elements as text: plain attributes only, so that any renderer draws them. No scripts, styles or fonts to load.

Nobody measures text here: widths are estimated with those of a wide sans-serif font, so that what fits by the estimate
fits in any.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from brim.cli.show.palette import INK, PAPER

SOFT, FAINT = "#5a5a5a", "#d9d9d9"
_NARROW, _WIDE = frozenset("iIjlft.,:;|'!()[] "), frozenset("mwMW@%—…")
_NARROW_EM, _LOWER_EM, _UPPER_EM, _WIDE_EM = 0.4, 0.63, 0.72, 1.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the picture."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


def document(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A whole SVG document on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif">'
    )
    paper = f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
    return "\n".join([head, f"<title>{_printable(title)}</title>", paper, *parts, "</svg>", ""])


def group(name: str, parts: Iterable[str]) -> str:
    return "\n".join([f'<g id="{_printable(name)}">', *parts, "</g>"])


def text(
    x: float,
    y: float,
    content: str,
    *,
    size: int = 12,
    anchor: str = "start",
    fill: str = INK,
    bold: bool = False,
    rotated: int = 0,
) -> str:
    """Text with its baseline at (x, y), rotated around that point."""
    weight = ' font-weight="bold"' if bold else ""
    turn = f' transform="rotate({rotated} {x:.1f} {y:.1f})"' if rotated else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{weight}{turn}>'
        f"{_printable(content)}</text>"
    )


def rect(box: Box, fill: str, *, stroke: str = "none", dashes: str = "", title: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    place = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    start = f'<rect {place} fill="{fill}" stroke="{stroke}"{dashed}'
    return f"{start}><title>{_printable(title)}</title></rect>" if title else f"{start}/>"


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, *, width: float = 1, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{stroke}" stroke-width="{width}"{dashed}/>'


def path(shape: str, fill: str, *, stroke: str = "none", title: str = "") -> str:
    start = f'<path d="{shape}" fill="{fill}" stroke="{stroke}" stroke-width="0.8" stroke-linejoin="round"'
    return f"{start}><title>{_printable(title)}</title></path>" if title else f"{start}/>"


def text_width(content: str, size: float) -> float:
    """The estimated width of text, in pixels."""
    return size * sum(_em(char) for char in content)


def _em(char: str) -> float:
    if char in _NARROW:
        return _NARROW_EM
    if char in _WIDE or ord(char) > 0x2E80:  # ideographs are as wide as high
        return _WIDE_EM
    return _UPPER_EM if char.isupper() else _LOWER_EM


def shortened(content: str, width: float, size: float) -> str:
    """Text that fits in a width: its middle is left out where it is too long; empty where nothing fits."""
    if text_width(content, size) <= width:
        return content
    for kept in range(len(content) - 1, 1, -1):
        start = kept // 2
        shorter = f"{content[:start]}…{content[len(content) - kept + start :]}"
        if text_width(shorter, size) <= width:
            return shorter
    return ""


def _printable(content: str) -> str:
    """Escaped, and without the control characters that XML does not allow."""
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in content))
