"""A class name stands for one thing in the package: a reader who has met it once knows it everywhere."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import brim


def test_a_class_name_is_unique_in_the_package() -> None:
    package = Path(brim.__file__).parent
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(package)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
