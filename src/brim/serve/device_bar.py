"""The device as one bar (`card_parts`): everything that is on it, and what is free, adding up to its memory.

What the fit has measured stays set aside for as long as the engine serves: a worst step, graphs, the canary. What
changes is read now: how the KV pool is filled, whether the canary is held, what neighbours take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brim.records.fit import FitItem, FitReport
from brim.records.health import Health
from brim.records.lease import Lease
from brim.records.memory import MemoryReading

if TYPE_CHECKING:
    from brim.engine.pool.figures import EngineFigures

FREE = "free"
_SET_ASIDE = ("state", "graphs", "activation", "workspace", "keep_free")  # by the fit, in the order of the bar


@dataclass(frozen=True, slots=True)
class BarSegment:
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """What is known of a device and of the engine on it, at one moment."""

    figures: EngineFigures
    health: Health
    report: FitReport | None = None  # None: the size was given
    now: MemoryReading | None = None  # None: nothing reads this device
    total_bytes: int | None = None  # of the whole device, where the reading is of a part
    leases: tuple[Lease, ...] = ()  # of neighbours

    def measured(self, name: str) -> int:
        """What the fit measured for a line of its report."""
        items = () if self.report is None else self.report.items
        return next((item.measured_bytes or 0 for item in items if item.name == name), 0)

    @property
    def kv_bytes(self) -> tuple[int, int, int]:
        """Used by requests, cached, and free."""
        figures = self.figures
        blocks = max(1, figures.blocks_held + figures.blocks_cached + figures.blocks_free)
        used = figures.kv_bytes * figures.blocks_held // blocks
        filled = figures.kv_bytes * (figures.blocks_held + figures.blocks_cached) // blocks
        return used, filled - used, figures.kv_bytes - filled

    @property
    def canary_bytes(self) -> int:
        """0 while it is lent to steps."""
        return self.measured("canary") if self.health.canary_held else 0

    @property
    def lease_bytes(self) -> int:
        """What neighbours have promised to take, or hold."""
        return sum(lease.claim_bytes for lease in self.leases)

    @property
    def stranger_bytes(self) -> int:
        """Held by processes without a lease, as far as the driver tells."""
        if self.now is None:
            return 0
        leased = sum(lease.held_bytes or 0 for lease in self.leases if lease.measured)
        return max(0, self.now.other_bytes - self.measured("context") - leased)

    @property
    def live_activation_bytes(self) -> int:
        """Tensors that live now and are nothing that stays."""
        if self.now is None:
            return 0
        stays = self.figures.weight_bytes + self.figures.kv_bytes + self.canary_bytes
        return max(0, self.now.allocated_bytes - stays - self.measured("state") - self.measured("graphs"))


def card_parts(card: DeviceSnapshot) -> tuple[BarSegment, ...]:
    """In the order of a bar; parts of no size are left out."""
    used, cached, unused = card.kv_bytes
    parts = [
        BarSegment("context", card.measured("context")),
        BarSegment("weights", card.figures.weight_bytes),
        BarSegment("kv_used", used),
        BarSegment("kv_cached", cached),
        BarSegment("kv_free", unused),
        *(BarSegment(name, card.measured(name)) for name in _SET_ASIDE),
        BarSegment("encoder", max(0, card.measured("encoder") - card.measured("activation"))),
        BarSegment("leases", card.lease_bytes),
        BarSegment("neighbours", card.stranger_bytes),
        BarSegment("canary", card.canary_bytes),
    ]
    total = card.total_bytes or (card.now.total_bytes if card.now is not None else 0)
    parts.append(BarSegment(FREE, max(0, total - sum(part.bytes for part in parts))))
    return tuple(part for part in parts if part.bytes > 0)


def ledger_lines(card: DeviceSnapshot) -> list[dict[str, Any]]:
    """Predicted, measured, and used now: a line for each of the fit's."""
    items = _given(card) if card.report is None else card.report.items
    return [
        {
            "name": item.name,
            "predicted_bytes": item.predicted_bytes,
            "measured_bytes": item.measured_bytes,
            "used_bytes": _used_now(card, item),
            "note": item.note,
        }
        for item in items
    ]


def _given(card: DeviceSnapshot) -> tuple[FitItem, ...]:
    """Without a fit: what is known by counting."""
    return (
        FitItem("weights", None, card.figures.weight_bytes),
        FitItem("kv", None, card.figures.kv_bytes),
    )


def _used_now(card: DeviceSnapshot, item: FitItem) -> int | None:
    """Of what was measured; None where nobody counts it."""
    counted = {
        "weights": card.figures.weight_bytes,
        "kv": card.kv_bytes[0] + card.kv_bytes[1],
        "canary": card.canary_bytes,
        "neighbours": card.lease_bytes + card.stranger_bytes,
        "activation": card.live_activation_bytes if card.now is not None else None,
        "keep_free": 0,
    }
    return counted.get(item.name, item.measured_bytes)
