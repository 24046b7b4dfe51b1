"""The memory of a device as one line of a terminal, which can be read without colour.

In: line items as (name, bytes, colour), and the size of the device. Out: `rich` text. Neighbours have different fills,
and each segment its key letter, with name and size where there is room; `ledger_mark` puts the letter in a table's
row, and `bar_key` lists the letters where there is no table. An item too small for a cell is in the key only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from rich.text import Text

from brim.cli.show.palette import MISSING, ink_on, item_keys
from brim.units import format_bytes

Item = tuple[str, int, str]
_FILLS = "█▒"  # in turn
_FREE, _SHORT, _END = "·", "▶", "┃"


def memory_bar(items: Sequence[Item], total_bytes: int, width: int, shortfall_bytes: int = 0) -> Text:
    """A bar of `width` cells; where there is a shortfall, a line marks the end of the device inside it."""
    keys = item_keys(name for name, _, _ in items)
    needed = max(1, total_bytes + shortfall_bytes, sum(max(0, size) for _, size, _ in items))
    cells = width - 1 if needed > total_bytes else width  # the mark takes one
    end = total_bytes * cells // needed
    bar, fills = Text(no_wrap=True), cycle(_FILLS)
    for (name, size, colour), edge in _drawn(items, needed // (2 * cells)):
        start, stop = len(bar), round(edge * cells / needed)
        if stop > start:
            bar.append_text(_segment((keys[name], name, format_bytes(size)), colour, next(fills), start, stop, end))
    bar.append(_FREE * (end - len(bar)), style="dim")
    bar.append(_SHORT * (cells - len(bar)), style=MISSING)
    if needed == total_bytes:
        return bar
    before, after = bar.divide([end])
    return before.append(_END, style=f"bold {MISSING}").append_text(after)


def _drawn(items: Sequence[Item], least_bytes: int) -> list[tuple[Item, int]]:
    """The items of more than a size, and where each ends; the smaller ones after it are its own."""
    found: list[tuple[Item, int]] = []
    edge = 0
    for item in items:
        edge += max(0, item[1])
        if item[1] > least_bytes:
            found.append((item, edge))
        elif found:
            found[-1] = found[-1][0], edge
    return found


def _segment(words: tuple[str, str, str], colour: str, fill: str, start: int, stop: int, end: int) -> Text:
    """The cells of an item; one that crosses the end of the device has its label on the longer side."""
    if not start < end < stop:
        return _labelled(words, colour, fill, stop - start)
    if end - start < stop - end:
        return Text().append(fill * (end - start), style=colour).append_text(_labelled(words, colour, fill, stop - end))
    return _labelled(words, colour, fill, end - start).append(fill * (stop - end), style=colour)


def _labelled(words: tuple[str, str, str], colour: str, fill: str, cells: int) -> Text:
    """So many cells of a fill, with the longest label that leaves one of them on either side."""
    key, name, size = words
    labels = (f" {key} {name} {size} ", f" {key} {name} ", key)
    label = next((label for label in labels if len(label) + 2 <= cells), key)
    left = (cells - len(label)) // 2
    segment = Text().append(fill * left, style=colour)
    segment.append(label, style=f"bold {ink_on(colour)} on {colour}")
    return segment.append(fill * (cells - left - len(label)), style=colour)


def ledger_mark(key: str, colour: str) -> Text:
    """The key letter as a table's row shows it."""
    return Text().append(f" {key} ", style=f"bold {ink_on(colour)} on {colour}")


def bar_key(items: Sequence[Item], width: int) -> Text:
    """The letters of a bar with names and sizes, in lines of at most `width` cells."""
    keys = item_keys(name for name, _, _ in items)
    lines: list[Text] = []
    for name, size, colour in items:
        if size <= 0:
            continue
        entry = ledger_mark(keys[name], colour).append(f" {name} {format_bytes(size)}")
        if lines and len(lines[-1]) + 3 + len(entry) <= width:
            lines[-1].append("   ").append_text(entry)
        else:
            lines.append(entry)
    return Text("\n").join(lines)
