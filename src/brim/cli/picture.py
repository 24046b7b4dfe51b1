"""The picture of a plan: the device as a bar, with a legend. Plain SVG, no fonts or scripts needed."""

from __future__ import annotations

from html import escape

from brim.cli.answer import answer
from brim.cli.palette import ITEM_COLOURS, MISSING
from brim.records.plan import MemoryPlan
from brim.units import format_bytes

_WIDTH, _MARGIN, _BAR_TOP, _BAR_HEIGHT, _LINE = 960, 30, 84, 54, 26


def plan_svg(plan: MemoryPlan) -> str:
    """The plan as an SVG document."""
    shown = [item for item in plan.items if item.bytes > 0]
    needed = plan.device.total_bytes + plan.shortfall_bytes
    scale = (_WIDTH - 2 * _MARGIN) / needed
    height = _BAR_TOP + _BAR_HEIGHT + 40 + _LINE * len(shown) + 20
    device = plan.device.name if plan.ranks == 1 else f"{plan.ranks} × {plan.device.name}"
    verdict, colour = ("fits", ITEM_COLOURS["kv"]) if plan.fits else ("does not fit", MISSING)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="15">',
        f"<title>{escape(plan.model)} on {escape(device)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="36" font-size="21" font-weight="600">{escape(plan.model)} on {escape(device)}: '
        f'<tspan fill="{colour}">{verdict}</tspan></text>',
        f'<text x="{_MARGIN}" y="62" fill="#555555">{escape(answer(plan)[0])}</text>',
        *_bar(plan, scale),
    ]
    for row, item in enumerate(shown):
        y = _BAR_TOP + _BAR_HEIGHT + 44 + row * _LINE
        parts += [
            f'<rect x="{_MARGIN}" y="{y - 13}" width="14" height="14" rx="3" fill="{ITEM_COLOURS[item.name]}"/>',
            f'<text x="{_MARGIN + 24}" y="{y}">{escape(item.name)}</text>',
            f'<text x="{_MARGIN + 240}" y="{y}" text-anchor="end">{format_bytes(item.bytes)}</text>',
            f'<text x="{_MARGIN + 262}" y="{y}" fill="#777777">{escape(f"{item.source}: {item.detail}"[:84])}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _bar(plan: MemoryPlan, scale: float) -> list[str]:
    parts, x, left = [], float(_MARGIN), plan.device.total_bytes
    for item in plan.items:
        size = min(max(0, item.bytes), left)
        left -= size
        if size:
            parts.append(
                f'<rect x="{x:.1f}" y="{_BAR_TOP}" width="{size * scale:.1f}" height="{_BAR_HEIGHT}" '
                f'fill="{ITEM_COLOURS[item.name]}"><title>{escape(item.name)} {format_bytes(item.bytes)}</title></rect>'
            )
        x += size * scale
    end = _MARGIN + plan.device.total_bytes * scale
    if plan.shortfall_bytes:
        parts.append(
            f'<rect x="{end:.1f}" y="{_BAR_TOP}" width="{plan.shortfall_bytes * scale:.1f}" height="{_BAR_HEIGHT}" '
            f'fill="none" stroke="{MISSING}" stroke-width="2" stroke-dasharray="6 4"/>'
        )
    width = plan.device.total_bytes * scale
    outline = (
        f'<rect x="{_MARGIN}" y="{_BAR_TOP}" width="{width:.1f}" height="{_BAR_HEIGHT}" fill="none" stroke="#222222"/>'
    )
    label = f'<text x="{end:.1f}" y="{_BAR_TOP + _BAR_HEIGHT + 18}" text-anchor="end" fill="#555555">'
    return [*parts, outline, f"{label}{format_bytes(plan.device.total_bytes)}</text>"]
