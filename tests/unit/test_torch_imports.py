"""Torch is imported at the top of modules of the engine alone; elsewhere inside the functions that use it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import brim

ROOT = Path(brim.__file__).parent


def _at_import(node: ast.AST) -> Iterator[str]:
    """Names that are imported when a module is: not inside functions, and not for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (name.name for name in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.module or ""
        yield from _at_import(child)


def test_only_the_engine_imports_torch_at_the_top_of_modules() -> None:
    found: set[str] = set()
    for path in ROOT.rglob("*.py"):
        names = _at_import(ast.parse(path.read_text(encoding="utf-8")))
        if any(name.partition(".")[0] == "torch" for name in names):
            found.add(path.relative_to(ROOT).parts[0])
    assert found == {"engine"}
