"""The picture of a trace: live bytes over the operations of a step, coloured by module, the peak marked."""

from __future__ import annotations

from html import escape
from itertools import pairwise

from brim.records.trace import Moment, Trace
from brim.units import format_bytes

_WIDTH, _HEIGHT, _MARGIN, _TOP, _COLUMNS = 960, 420, 60, 70, 600
_COLOURS = {
    "attention": "#3f6fb5",
    "feed-forward": "#d9822b",
    "experts": "#b04f6f",
    "norm": "#b7a08a",
    "embeddings and head": "#3d9a50",
    "tower": "#8e63b0",
    "other": "#8a8a8a",
}


def part_of(module: str) -> str:
    """The kind of module a path names."""
    last = module.lower()
    if "visual" in last or "vision" in last or "audio" in last:
        return "tower"
    if "expert" in last:
        return "experts"
    if "norm" in last.rsplit(".", 1)[-1]:
        return "norm"
    if "attn" in last or "attention" in last or "mixer" in last or "mamba" in last:
        return "attention"
    if "mlp" in last or "feed_forward" in last or "ffn" in last:
        return "feed-forward"
    if "embed" in last or "lm_head" in last or not last:
        return "embeddings and head"
    return "other"


def timeline_svg(trace: Trace) -> str:
    """The timeline as an SVG document."""
    columns = _columns(trace.timeline)
    top = max(trace.peak_bytes, 1)
    scale, step = (_HEIGHT - _TOP - _MARGIN) / top, (_WIDTH - 2 * _MARGIN) / max(1, len(columns))
    bottom = _HEIGHT - _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="system-ui, sans-serif" font-size="14">',
        f"<title>{escape(trace.model)}: live bytes of a step</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="30" font-size="20" font-weight="600">{escape(trace.model)}: '
        f"{format_bytes(trace.peak_bytes)} at the peak</text>",
        f'<text x="{_MARGIN}" y="52" fill="#555555">{escape(_words(trace))}</text>',
    ]
    for index, moment in enumerate(columns):
        height = moment.live_bytes * scale
        colour = _COLOURS[part_of(moment.module)]
        parts.append(
            f'<rect x="{_MARGIN + index * step:.1f}" y="{bottom - height:.1f}" width="{step + 0.3:.1f}" '
            f'height="{height:.1f}" fill="{colour}"/>'
        )
    peak = max(range(len(columns)), key=lambda index: columns[index].live_bytes, default=0)
    x = _MARGIN + (peak + 0.5) * step
    parts.append(f'<path d="M {x:.1f} {_TOP - 4} l -6 -9 l 12 0 z" fill="#c62828"/>')
    parts.append(f'<line x1="{_MARGIN}" y1="{bottom}" x2="{_WIDTH - _MARGIN}" y2="{bottom}" stroke="#222222"/>')
    return "\n".join([*parts, *_legend(bottom), "</svg>", ""])


def _words(trace: Trace) -> str:
    shape = trace.shape
    what = f"{shape.phase}, {shape.batch} × {shape.tokens:,} tokens, {trace.attention} attention"
    return f"{what}; peak in {trace.at_module or 'the model'} ({trace.at_op})"


def _legend(bottom: int) -> list[str]:
    parts, x = [], float(_MARGIN)
    for name, colour in _COLOURS.items():
        parts.append(f'<rect x="{x:.0f}" y="{bottom + 22}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17:.0f}" y="{bottom + 33}">{escape(name)}</text>')
        x += 34 + 7.6 * len(name)
    return parts


def _columns(timeline: tuple[Moment, ...]) -> list[Moment]:
    """At most `_COLUMNS` moments: of each stretch, the one with the most live bytes."""
    if len(timeline) <= _COLUMNS:
        return list(timeline)
    edges = [index * len(timeline) // _COLUMNS for index in range(_COLUMNS + 1)]
    return [max(timeline[start:end], key=lambda moment: moment.live_bytes) for start, end in pairwise(edges)]
