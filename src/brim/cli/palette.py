"""One colour per line item, the same in the terminal and in pictures."""

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
