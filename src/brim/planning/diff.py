"""Why two plans differ: their ledgers line by line.

In: two plans, as `brim plan --json` wrote them or as they were made now. Out: a `DiffRow` for every line whose bytes
differ, with what changed it; none for a plan and itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import InvalidRequest
from brim.records.plan import MemoryPlan
from brim.suggest import shown

_SETTINGS = {  # what a line depends on beside its own details, by the keys of a plan
    "kv": ("kv_dtype", "kv_tokens"),
    "activation": ("batch_tokens",),
    "workspace": ("max_seqs", "engine", "engine_version"),
    "graphs": ("max_seqs",),
    "state": ("max_seqs",),
}
_KEYS = ("model", "engine", "engine_version", "kv_dtype", "kv_tokens", "max_len", "max_seqs", "batch_tokens")


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What a comparison reads of a plan: its device, settings and lines (bytes and detail)."""

    device: str
    count: int
    total_bytes: int
    settings: Mapping[str, object]
    lines: Mapping[str, tuple[int, str]]

    @property
    def title(self) -> str:
        engine = f", {self.settings['engine']} {self.settings['engine_version']}" if self.settings["engine"] else ""
        count = f"{self.count} × " if self.count > 1 else ""
        return f"{self.settings['model']} on {count}{self.device}{engine}"


@dataclass(frozen=True, slots=True)
class DiffRow:
    """A line of the ledger that changed. 0 bytes: there is no such line on that side."""

    item: str
    before_bytes: int
    after_bytes: int
    why: str

    def to_json(self) -> dict[str, object]:
        """The stable keys of `diff` in `brim plan --diff --json`."""
        return {
            "item": self.item,
            "before_bytes": self.before_bytes,
            "after_bytes": self.after_bytes,
            "why": self.why,
        }


def view(plan: MemoryPlan) -> LedgerView:
    """A plan that was made now."""
    return _read(plan.to_json())


def read_plan(path: Path) -> LedgerView | None:
    """A plan that `brim plan --json` wrote; None where the file is something else, such as a config."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(raw, dict) and "plans" in raw:
        raise InvalidRequest(
            f"{shown(str(path))} is a comparison of several plans; write one with --json and one --gpu"
        )
    if not isinstance(raw, dict) or not {"items", "device", "kv_bytes_per_token"} <= set(raw):
        return None
    try:
        return _read(raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"{shown(str(path))} is no whole plan ({type(error).__name__} at {error}); write it with brim plan --json"
        ) from None


def diff_plans(before: LedgerView, after: LedgerView) -> tuple[DiffRow, ...]:
    """The lines that changed, in the order of the ledger; the device's own size last."""
    names = dict.fromkeys([*before.lines, *after.lines])
    rows = [
        DiffRow(name, before.lines.get(name, (0, ""))[0], after.lines.get(name, (0, ""))[0], _why(name, before, after))
        for name in names
    ]
    rows.append(DiffRow("device", before.total_bytes, after.total_bytes, _change(before.device, after.device)))
    return tuple(row for row in rows if row.before_bytes != row.after_bytes)


def _read(raw: Mapping[str, Any]) -> LedgerView:
    device = raw["device"]
    return LedgerView(
        device=str(device["name"]),
        count=int(device["count"]),
        total_bytes=int(device["total_bytes"]),
        settings={key: raw.get(key) for key in _KEYS},
        lines={str(item["name"]): (int(item["bytes"]), str(item["detail"])) for item in raw["items"]},
    )


def _why(name: str, before: LedgerView, after: LedgerView) -> str:
    """The settings that the line depends on, then its own details, then whatever else is not the same."""
    own = [_setting(key, before, after) for key in _SETTINGS.get(name, ())]
    details = before.lines.get(name, (0, ""))[1], after.lines.get(name, (0, ""))[1]
    found = [one for one in own if one] + ([_change(*details)] if details[0] != details[1] else [])
    if not found and (before.device, before.count) != (after.device, after.count):
        found = [_change(f"{before.count} × {before.device}", f"{after.count} × {after.device}")]
    if not found:
        found = [one for key in _KEYS if (one := _setting(key, before, after))]
    return "; ".join(found) or "the same settings, counted otherwise"


def _setting(key: str, before: LedgerView, after: LedgerView) -> str:
    one, other = before.settings[key], after.settings[key]
    return "" if one == other else f"{key} {_change(_text(one), _text(other))}"


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else str(value)


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before or 'none'} → {after or 'none'}"
