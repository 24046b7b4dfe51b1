"""The models that are part of Brim, by name: folders like any other model's.

In: a name. Out: its folder, or None. A path that exists comes before a name; its readers see to that.
"""

from __future__ import annotations

import re
from pathlib import Path

_FOLDERS = Path(__file__).parents[1] / "models"
_NAME = re.compile(r"brim-[a-z-]+")


def packaged_folder(name: str) -> Path | None:
    """The folder of a model of Brim's own."""
    folder = _FOLDERS / name
    return folder if _NAME.fullmatch(name) and (folder / "config.json").is_file() else None


def packaged_names() -> tuple[str, ...]:
    return tuple(sorted(config.parent.name for config in _FOLDERS.glob("*/config.json")))
