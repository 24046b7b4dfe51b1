"""Reading a JSON object from a file that the user named: bounded, and with a one-line error for every failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from brim.errors import InvalidConfig, SourceNotFound
from brim.units import MIB, format_bytes

LARGEST_CONFIG_BYTES = 32 * MIB  # the largest published one is 3 MB


def read_object(path: Path, largest_bytes: int = LARGEST_CONFIG_BYTES) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        if not path.is_file():
            raise SourceNotFound(f"{path}: not a regular file; give a model directory or a config.json")
        size = path.stat().st_size
        if size > largest_bytes:
            raise InvalidConfig(
                path.name,
                f"is {format_bytes(size)}, larger than any config ({format_bytes(largest_bytes)})",
                "wrong file?",
            )
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidConfig(path.name, "is not text", "give the model's config.json") from None
    except OSError as error:
        raise SourceNotFound(f"{path}: cannot be read ({error.strerror or error})") from None
    return parse_object(text, path.name)


def parse_object(text: str, name: str) -> dict[str, Any]:
    """The object in a JSON text."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidConfig(name, f"is not JSON (line {error.lineno}, column {error.colno}: {error.msg})") from None
    except RecursionError:
        raise InvalidConfig(name, "is nested too deeply to be a config") from None
    except ValueError as error:
        raise InvalidConfig(name, f"is not JSON that can be read ({error})") from None
    if not isinstance(value, dict):
        kind = {list: "list", str: "text", int: "number", float: "number"}.get(type(value), type(value).__name__)
        raise InvalidConfig(name, f"holds a JSON {kind}, not an object", "give the model's config.json")
    return value
