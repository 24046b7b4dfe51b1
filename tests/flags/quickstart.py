"""The table of flags in `docs/quickstart_vllm.md`, for those who hold its columns against the parsers."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "quickstart_vllm.md"


def rows() -> list[list[str]]:
    """The cells of each row: flags of vLLM, of a plan, of a server, and what is said."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `--")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def flags(cell: str) -> list[str]:
    return re.findall(r"`(--[a-z][\w-]*)", cell)
