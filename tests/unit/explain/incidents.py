"""The incidents with known causes, and the halves that a hash of their names makes of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "data" / "incidents"
OPEN, HELD = "open", "held"  # rules were written with the first; the second was not looked at


@dataclass(frozen=True, slots=True)
class KnownIncident:
    """An incident, and the cause that was found."""

    name: str
    cause: str
    source: str

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in FOLDER.glob(f"{self.name}.*") if path.suffix != ".json")

    @property
    def half(self) -> str:
        return half_of(self.name)


def half_of(name: str) -> str:
    return HELD if hashlib.sha256(name.encode()).digest()[0] % 2 else OPEN


def known_incidents() -> list[KnownIncident]:
    listed = json.loads((FOLDER / "incidents.json").read_text(encoding="utf-8"))
    return [KnownIncident(one["name"], one["cause"], one["source"]) for one in listed]
