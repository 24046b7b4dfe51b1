"""Colours and key letters: of line items, the same in the terminal and in pictures, and of the parts of a model.

The hues are told apart with any common colour blindness; shades of one hue differ in lightness, so that neighbours are
told apart in black and white.
"""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_uppercase, digits

GREEN, BLUE, SKY, VIOLET = "#2a9d7c", "#1f77b4", "#56b4e9", "#7b5ea7"
ORANGE, ROSE, SAND, VERMILION, GREY = "#f0a02e", "#cc79a7", "#e2d06c", "#d55e00", "#8c8c8c"
MISSING = "#c62828"
INK, PAPER = "#1a1a1a", "#ffffff"
_LIGHT = 0.17  # a fill of more than this luminance gets dark text
_SHADES = (0.0, 0.55, -0.2, 0.3, 0.75, -0.3)  # towards white, or black where negative


def shade(hue: str, number: int) -> str:
    """One of the shades of a hue; neighbouring numbers differ in lightness."""
    mix = _SHADES[number % len(_SHADES)]
    towards = 255 if mix > 0 else 0
    channels = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (towards - channel) * abs(mix)):02x}" for channel in channels)


def ink_on(fill: str) -> str:
    """Black or white, whichever can be read on a fill."""
    red, green, blue = ((int(fill[at : at + 2], 16) / 255) ** 2.2 for at in (1, 3, 5))
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > _LIGHT else PAPER


ITEM_COLOURS = {
    "context": GREY,
    "weights": BLUE,
    "draft": SKY,
    "encoder": VIOLET,
    "activation": ORANGE,
    "workspace": shade(ORANGE, 1),
    "graphs": SAND,
    "state": shade(GREEN, 1),
    "neighbours": ROSE,
    "canary": shade(GREY, 1),  # kept back on purpose: nothing to be alarmed about
    "keep_free": shade(SAND, 1),
    "kv": GREEN,
    "kv_used": GREEN,  # of a pool that serves: by requests
    "kv_cached": shade(GREEN, 3),
    "kv_free": shade(GREEN, 4),
    "leases": ROSE,
}
_ITEM_KEYS = {
    "context": "C",
    "weights": "W",
    "draft": "D",
    "encoder": "E",
    "activation": "A",
    "workspace": "O",
    "graphs": "G",
    "state": "S",
    "neighbours": "N",
    "canary": "Y",
    "keep_free": "F",
    "kv": "K",
    "kv_used": "U",
    "kv_cached": "P",
    "kv_free": "V",
    "leases": "L",
}


def item_colour(name: str) -> str:
    """The colour of a line item; grey for one that has none of its own."""
    return ITEM_COLOURS.get(name, shade(GREY, 3))


def item_keys(names: Iterable[str]) -> dict[str, str]:
    """A letter for each line item, always the same for those known; another's is one of its own where that is free."""
    names = list(names)
    keys = {name: _ITEM_KEYS[name] for name in names if name in _ITEM_KEYS}
    for name in names:
        if name not in keys:
            free = (key for key in (*name.upper(), *ascii_uppercase, *digits) if key.isalnum())
            keys[name] = next((key for key in free if key not in keys.values()), "?")
    return keys
