"""The code of docs/authors.md, as it is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "authors.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def page_blocks() -> list[str]:
    return _BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def run_page(blocks: int | None = None) -> dict[str, Any]:
    """The names that the first so many blocks define, run one after the other."""
    names: dict[str, Any] = {"__name__": "authors_page"}
    for number, block in enumerate(page_blocks()[:blocks], start=1):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), names)
    return names
