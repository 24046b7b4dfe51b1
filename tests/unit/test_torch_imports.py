"""Where torch is imported: at the top of modules that compute with it, inside functions elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import brim

PACKAGE = Path(brim.__file__).parent
COMPUTES = {"engine", "probes", "trace", "vllm"}


def imported_at_the_top(body: list[ast.stmt]) -> Iterator[str]:
    """Names of packages; what is under `if TYPE_CHECKING` is not run."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Try | ast.With):
            yield from imported_at_the_top(node.body)


def test_torch_is_imported_at_the_top_only_where_it_computes() -> None:
    found = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        if "torch" in imported_at_the_top(ast.parse(path.read_text(encoding="utf-8")).body)
    }
    assert "engine" in found
    assert found <= COMPUTES
