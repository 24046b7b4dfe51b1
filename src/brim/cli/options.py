"""What several commands share: the type of the subparsers, and options that mean the same everywhere."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from brim.errors import InvalidRequest

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


_NUMBERS = re.compile(r"\s*\d{1,3}\s*(?:,\s*\d{1,3}\s*)+")


def gpu_names(given: list[str]) -> list[str]:
    """The devices or nodes to plan for: names in one option are separated by commas, and "0,1" is one node."""
    return [name for text in given for name in ([text] if _NUMBERS.fullmatch(text) else text.split(","))]


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
