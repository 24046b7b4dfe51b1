"""The blocks of one request: a record that only the ledger writes to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestBlocks:
    """The blocks of one request while it has a slot. In a windowed group the first entries are freed (scratch)."""

    slot: int
    tables: list[list[int]]
    given_up: list[int]  # by group: entries before this are scratch
    published: int = 0  # full blocks that can be found by content
    common: int = field(default=0, compare=False)  # entries that others hold too, in the group without a window
