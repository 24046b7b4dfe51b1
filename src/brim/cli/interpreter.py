"""The command that runs a module in another process of this interpreter."""

from __future__ import annotations

import sys


def module_command(module: str, *words: str) -> list[str]:
    """As `python -m module …`, but never a folder of that name in the working directory (`-P`)."""
    return [sys.executable, "-P", "-m", module, *words]
