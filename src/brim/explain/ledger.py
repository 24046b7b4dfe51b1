"""The ledger at the moment of an incident: what each part should have taken, what it took, and who took more."""

from __future__ import annotations

from dataclasses import dataclass

from brim.explain.facts import Incident
from brim.explain.rules.figures import other_bytes
from brim.records.plan import MemoryPlan

_LINES = (  # of the ledger, and the figures that say what they took
    ("context", ("context_bytes", "other_bytes")),
    ("weights", ("weights_bytes",)),
    ("activation", ("activation_bytes",)),
    ("graphs", ("graphs_bytes",)),
    ("kv", ("kv_bytes",)),
)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A line: planned, and as a source states it. None: not known."""

    name: str
    should_bytes: int | None
    took_bytes: int | None

    @property
    def difference_bytes(self) -> int | None:
        if self.should_bytes is None or self.took_bytes is None:
            return None
        return self.took_bytes - self.should_bytes

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "should_bytes": self.should_bytes,
            "took_bytes": self.took_bytes,
            "difference_bytes": self.difference_bytes,
        }


def ledger_of(incident: Incident, plan: MemoryPlan | None) -> tuple[LedgerRow, ...]:
    """Lines of which something is known. Those of a recording have what was predicted at its start."""
    planned = {} if plan is None else {item.name: item.bytes for item in plan.items}
    for fact in incident.recordings:
        start = fact.recorded.start
        if start is not None:
            planned |= {line.name: line.predicted_bytes for line in start.ledger if line.predicted_bytes}
    rows = [LedgerRow(name, planned.get(name), _took(incident, figures)) for name, figures in _LINES]
    rows += [LedgerRow("neighbours", planned.get("neighbours", 0), _others(incident)), _unused(incident)]
    rows.append(LedgerRow("free", None, _free(incident)))
    return tuple(row for row in rows if row.took_bytes is not None or row.should_bytes)


def who_took(rows: tuple[LedgerRow, ...]) -> LedgerRow | None:
    """The line that is furthest above its plan; the pool takes what is left, and is none."""
    above = [row for row in rows if row.name != "kv" and (row.difference_bytes or 0) > 0]
    return max(above, key=lambda row: row.difference_bytes or 0, default=None)


def _took(incident: Incident, names: tuple[str, ...]) -> int | None:
    return next((found for name in names if (found := incident.value(name)) is not None), None)


def _others(incident: Incident) -> int | None:
    """What neighbours held: by the last refusal, else by what was taken before the start."""
    stated = [found for one in incident.refusals if (found := other_bytes(one)) is not None]
    if stated:
        return stated[-1]
    total, free = incident.value("total_bytes"), incident.value("free_at_start_bytes")
    return None if total is None or free is None else max(0, total - free)


def _unused(incident: Incident) -> LedgerRow:
    found = next((one.unused_bytes for one in reversed(incident.refusals) if one.unused_bytes is not None), None)
    return LedgerRow("reserved and unused", None, found)


def _free(incident: Incident) -> int | None:
    return next((one.free_bytes for one in reversed(incident.refusals) if one.free_bytes is not None), None)
