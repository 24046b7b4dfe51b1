"""Which torch and transformers a trace is of, by the names of their metadata folders: nothing heavy is imported.

`importlib.metadata` would read the same versions from the files in those folders, in a fifth of a plan's time.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

FORMAT = 1  # of stored curves; raise it when the tracer's rules change


@cache
def traced_with() -> str:
    """ "torch 2.13.0, transformers 5.22.2, format 1"; empty where either is not installed."""
    torch, transformers = installed_version("torch"), installed_version("transformers")
    return f"torch {torch}, transformers {transformers}, format {FORMAT}" if torch and transformers else ""


def installed_version(package: str) -> str | None:
    """The version of an installed package, `NAME-VERSION.dist-info`; None where it is not installed."""
    for folder in sys.path:
        for found in Path(folder).glob(f"{package}-*.dist-info"):
            return found.name.removeprefix(f"{package}-").removesuffix(".dist-info")
    return None
