"""One colour per line item, the same in the terminal and in pictures, and a hue per part of a model.

The hues are told apart with any common colour blindness; shades of one hue differ in lightness, so that neighbours are
told apart in black and white.
"""

from __future__ import annotations

ITEM_COLOURS = {
    "context": "#7f7f7f",
    "weights": "#3f6fb5",
    "draft": "#7a9fd6",
    "encoder": "#8e63b0",
    "activation": "#d9822b",
    "workspace": "#b7a08a",
    "graphs": "#c9b458",
    "state": "#4aa3a2",
    "neighbours": "#b04f6f",
    "canary": "#e3c800",
    "keep_free": "#e8dfa0",
    "kv": "#3d9a50",
}
MISSING = "#c62828"

GREEN, BLUE, SKY, VIOLET = "#2a9d7c", "#1f77b4", "#56b4e9", "#7b5ea7"
ORANGE, ROSE, SAND, VERMILION, GREY = "#f0a02e", "#cc79a7", "#e2d06c", "#d55e00", "#8c8c8c"
_SHADES = (0.0, 0.55, -0.2, 0.3, 0.75, -0.3)  # towards white, or black where negative


def shade(hue: str, number: int) -> str:
    """One of the shades of a hue; neighbouring numbers differ in lightness."""
    mix = _SHADES[number % len(_SHADES)]
    towards = 255 if mix > 0 else 0
    channels = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (towards - channel) * abs(mix)):02x}" for channel in channels)
