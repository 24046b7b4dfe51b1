"""Public names of a package that are imported when they are asked for, so that importing the package stays light.

In: public names and where each is defined ("module", or "module:name" where it is called otherwise there). Out: the
`__getattr__` of the package. Each package lists the same names in its `__all__`, and imports them for type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package with these public names."""

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module, _, defined = places[name].partition(":")
        return getattr(import_module(module), defined or name)

    return get
