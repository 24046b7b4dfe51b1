"""Keys from a file, so that they are in no list of processes: one to a line, with its weight where that is not 1.

# the batch jobs
sk-3f8a...
# the application, which gets four turns for each of theirs
sk-91cd... weight=4
"""

from __future__ import annotations

from pathlib import Path

from brim.errors import InvalidRequest

_MOST_WEIGHT = 1000.0


def read_key_file(path: Path) -> dict[str, float]:
    """Each key's weight. A wrong line is named by its number: what it says may be a secret."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not text"
        raise InvalidRequest(f"api-key-file {path}: it cannot be read ({said})") from None
    found: dict[str, float] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        key, *options = words
        if key in found:
            raise InvalidRequest(f"api-key-file {path}, line {number}: this key is there already")
        found[key] = _weight(options, f"api-key-file {path}, line {number}")
    if not found:
        raise InvalidRequest(f"api-key-file {path}: there is no key in it; write one to a line")
    return found


def _weight(options: list[str], where: str) -> float:
    if not options:
        return 1.0
    name, _, value = options[0].partition("=")
    if len(options) > 1 or name != "weight":
        raise InvalidRequest(f"{where}: write KEY, or KEY weight=N")
    try:
        weight = float(value)
    except ValueError:
        weight = 0.0
    if not 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:
        raise InvalidRequest(f"{where}: weight must be a number from {1 / _MOST_WEIGHT:g} to {_MOST_WEIGHT:g}")
    return weight
