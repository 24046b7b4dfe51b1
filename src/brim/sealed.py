"""Small JSON entries on disk that parallel processes share: written atomically, and checked by a checksum when read."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def seal(body: dict[str, Any]) -> dict[str, Any]:
    """The entry with a checksum."""
    return {**body, "checksum": _checksum(body)}


def unseal(entry: Any) -> dict[str, Any] | None:
    """What was sealed; None for anything else."""
    if not isinstance(entry, dict):
        return None
    body = {name: value for name, value in entry.items() if name != "checksum"}
    return body if entry.get("checksum") == _checksum(body) else None


def write_entry(path: Path, body: dict[str, Any]) -> None:
    """Write an entry: a temporary file, then a rename."""
    import tempfile  # only here: plans only read

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(seal(body), file)
        Path(name).replace(path)
    except BaseException:  # a full disk is not filled further
        Path(name).unlink(missing_ok=True)
        raise


def read_entry(path: Path) -> dict[str, Any] | None:
    """An entry; None where there is none, or what is there is damaged."""
    try:
        return unseal(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
