"""The built-in catalogue: models people serve, as dimensions, by short name and by hub id."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalogue."""

    name: str
    hub_id: str
    config: dict[str, Any]


@cache
def entries() -> dict[str, Entry]:
    """Every model of the catalogue, by short name."""
    raw = json.loads(_FILE.read_text(encoding="utf-8"))
    return {name: Entry(name, item["id"], item["config"]) for name, item in raw.items()}


def find_entry(text: str) -> Entry | None:
    """A model by short name or hub id, whatever the case."""
    wanted = text.strip().lower()
    if wanted in entries():
        return entries()[wanted]
    return next((entry for entry in entries().values() if entry.hub_id.lower() == wanted), None)
