"""Stand-ins for libraries that a parser's module imports and never uses to parse."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock


class _StandIns(MetaPathFinder, Loader):
    """Asked after all other finders: a library that is installed is never replaced."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self._names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__dict__["__getattr__"] = _attribute
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _attribute(name: str) -> MagicMock:
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock()


@contextmanager
def standing_in_for(*names: str) -> Iterator[None]:
    finder = _StandIns(frozenset(names))
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
