"""`docs/environment.md` names every variable that the source reads or sets, and none of Brim's that does not exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|BRIM|HOME|RANK")
VALUES = {"PCI_BUS_ID"}  # what a variable may be, not a variable


def named_in(source: str) -> set[str]:
    """Literals that look like variables in a module that has to do with the environment, whoever looks them up."""
    if "environ" not in source and "getenv" not in source:
        return set()
    literals = (one.value for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Constant))
    return {one for one in literals if isinstance(one, str) and NAME.fullmatch(one)} - VALUES


def of_the_source() -> set[str]:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    own = {name for text in texts for name in re.findall(r"[\"'](BRIM_[A-Z_]+)[\"']", text)}
    return own.union(*map(named_in, texts))


def of_the_page() -> set[str]:
    rows = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8").splitlines()
    first_cells = (row.split("|")[1] for row in rows if row.startswith("| `"))
    return {name for cell in first_cells for name in re.findall(r"`([A-Z0-9_]+)`", cell)}


def test_every_variable_of_the_source_is_on_the_page() -> None:
    found = of_the_source()
    assert {"BRIM_CACHE", "CUDA_VISIBLE_DEVICES", "MASTER_PORT", "TRITON_CACHE_DIR"} <= found
    assert sorted(found - of_the_page()) == []


def test_what_the_page_says_of_brim_is_read() -> None:
    assert sorted(name for name in of_the_page() - of_the_source() if not name.startswith("HF_")) == []


def test_a_variable_is_found_however_it_is_read() -> None:
    assert named_in('import os\nos.environ["MY_NAME"]') == {"MY_NAME"}
    assert named_in('X = ("A_B", "C_D")\nimport os\nany(name in os.environ for name in X)') == {"A_B", "C_D"}
    assert named_in('WORDS = ("NOT_ONE",)') == set()
