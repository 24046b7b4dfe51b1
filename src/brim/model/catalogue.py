"""The built-in catalogue: models people serve, as dimensions, by short name and by hub id.

A quantised version of a model is listed by its `base` and by how its config says that it is quantised.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model of the catalogue."""

    name: str
    hub_id: str
    config: dict[str, Any]


@cache
def entries() -> dict[str, CatalogueEntry]:
    """Every model of the catalogue, by short name."""
    raw = json.loads(_FILE.read_text(encoding="utf-8"))
    return {name: CatalogueEntry(name, item["id"], _config(item, raw)) for name, item in raw.items()}


def _config(item: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    if "base" not in item:
        own: dict[str, Any] = item["config"]
        return own
    return {**others[item["base"]]["config"], "quantization_config": item["quantization_config"]}


def find_entry(text: str) -> CatalogueEntry | None:
    """A model by short name or hub id, whatever the case."""
    wanted = text.strip().lower()
    if wanted in entries():
        return entries()[wanted]
    return next((entry for entry in entries().values() if entry.hub_id.lower() == wanted), None)
