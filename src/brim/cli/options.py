"""What several commands share: the type of the subparsers, and options that mean the same everywhere."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from brim.errors import InvalidRequest

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def cache_folder() -> Path:
    """Where traced curves are kept."""
    return _own_folder() / "curves"


def fit_folder() -> Path:
    """Where proven fits are kept."""
    return _own_folder() / "fits"


def _own_folder() -> Path:
    """$BRIM_CACHE, else $XDG_CACHE_HOME/brim, else ~/.cache/brim."""
    own = os.environ.get("BRIM_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "brim"


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", dest="as_json", help="machine-readable, with stable keys")


def write_file(path: Path, text: str) -> None:
    """Write a file that the user named; an error names the path and the reason."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(
            f"svg {path}: cannot be written ({error.strerror}); name a file in a writable folder"
        ) from None
