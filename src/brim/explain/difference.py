"""Two starts compared: which line of the ledger changed by how much, and what that means for the KV pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from brim.errors import InvalidRequest
from brim.explain.facts import Incident
from brim.explain.reading import read_incident
from brim.units import format_bytes

_BYTES = (
    "total_bytes",
    "weights_bytes",
    "activation_bytes",
    "graphs_bytes",
    "other_bytes",
    "context_bytes",
    "kv_bytes",
)
_NAMES = {"other_bytes": "outside torch", "activation_bytes": "profile"}


@dataclass(frozen=True, slots=True)
class StartRow:
    """A figure of two starts."""

    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def signed(self) -> str:
        return f"{'+' if self.change > 0 else '-'}{format_bytes(abs(int(self.change)))}"

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "before": self.before, "after": self.after, "change": self.change}


@dataclass(frozen=True, slots=True)
class StartDifference:
    """Two starts: versions, KV tokens, and the lines that differ, the largest change first."""

    before: str
    after: str
    kv_tokens: tuple[int, int] | None
    rows: tuple[StartRow, ...]

    @property
    def words(self) -> str:
        if self.kv_tokens is None:
            return f"{self.before} → {self.after}: KV tokens are not in both"
        first, last = self.kv_tokens
        percent = 100 * (last - first) / first if first else 0.0
        said = (
            "as many KV tokens"
            if first == last
            else f"{abs(percent):.1f} % {'more' if last > first else 'fewer'} KV tokens"
        )
        reasons = [f"{row.name} {row.signed}" for row in self.rows if row.name != "kv"]
        return f"{self.before} → {self.after}: {said}" + (f": {', '.join(reasons[:4])}" if reasons else "")

    def to_json(self) -> dict[str, object]:
        return {
            "before": self.before,
            "after": self.after,
            "kv_tokens_before": None if self.kv_tokens is None else self.kv_tokens[0],
            "kv_tokens_after": None if self.kv_tokens is None else self.kv_tokens[1],
            "rows": [row.to_json() for row in self.rows],
            "words": self.words,
        }


def compare_starts(before: Path, after: Path) -> StartDifference:
    first, last = read_incident([before]), read_incident([after])
    for path, incident in ((before, first), (after, last)):
        if incident.value("kv_tokens") is None and incident.value("kv_bytes") is None:
            raise InvalidRequest(
                f"'{path}': the size of a KV pool is not in it; give a recording or a log with its start"
            )
    rows = [
        StartRow(_NAMES.get(name, name.removesuffix("_bytes")), one, other)
        for name in _BYTES
        if (one := first.value(name)) is not None and (other := last.value(name)) is not None and one != other
    ]
    tokens = first.value("kv_tokens"), last.value("kv_tokens")
    both = (tokens[0], tokens[1]) if tokens[0] is not None and tokens[1] is not None else None
    return StartDifference(
        _title(first, before), _title(last, after), both, tuple(sorted(rows, key=lambda row: -abs(row.change)))
    )


def _title(incident: Incident, path: Path) -> str:
    version = incident.flag("engine_version")
    return f"{incident.engine} {version.value}".strip() if version is not None else path.name
