"""The bar of a device adds up, whatever is known of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.records.fit import FitItem, FitReport, FitSeconds
from brim.records.health import Health, Status
from brim.records.lease import Lease, LeaseState, ProcessId
from brim.records.memory import MemoryReading

pytest.importorskip("torch")
from brim.serve.device_bar import DeviceSnapshot, card_parts, ledger_lines
from tests.unit.serve.test_watch import IDLE, READY

FIGURES = replace(IDLE, blocks_held=3, blocks_cached=2, blocks_free=5)  # 1,600 bytes of KV, 500 of weights


def report(**measured: int) -> FitReport:
    items = tuple(FitItem(name, size + 1, size) for name, size in measured.items())
    return FitReport(
        kv_tokens=160,
        kv_bytes=1600,
        canary_bytes=100,
        attempts=(),
        items=items,
        seconds=FitSeconds(),
        from_store=False,
        total_bytes=4000,
        free_bytes=0,
        limit_tokens=160,
        needed_tokens=160,
        needed_bytes=1600,
    )


def reading(total: int, other: int = 0, allocated: int = 0) -> MemoryReading:
    return MemoryReading(total, 0, allocated, allocated, allocated, allocated, other)


def lease(promised: int, held: int, state: LeaseState = LeaseState.HELD) -> Lease:
    return Lease(
        name="n",
        device="GPU-1",
        device_bytes=4000,
        holder=ProcessId(7, 1, "boot", 1),
        role="tts",
        generation=1,
        state=state,
        promised_bytes=promised,
        held_bytes=held,
        measured=True,
        created_seconds=0,
        heartbeat_seconds=0,
    )


FIT = report(context=200, weights=500, activation=300, encoder=350, canary=100, kv=1600, neighbours=0)


def parts(card: DeviceSnapshot) -> dict[str, int]:
    return {part.name: part.bytes for part in card_parts(card)}


def test_the_parts_add_up_to_the_device() -> None:
    card = DeviceSnapshot(
        FIGURES, READY, FIT, reading(4000, other=650), leases=(lease(300, 250), lease(90, 0, LeaseState.STARTING))
    )
    assert parts(card) == {
        "context": 200,
        "weights": 500,
        "kv_used": 480,
        "kv_cached": 320,
        "kv_free": 800,
        "activation": 300,
        "encoder": 50,
        "leases": 250 + 90,
        "neighbours": 650 - 200 - 250,
        "canary": 100,
        "free": 4000 - 3290,
    }


def test_a_canary_that_is_lent_is_not_shown_as_held() -> None:
    lent = Health(Status.DEGRADED, "a step ran out of memory", canary_held=False)
    card = DeviceSnapshot(FIGURES, lent, FIT, reading(4000))
    assert "canary" not in parts(card)
    assert sum(parts(card).values()) == 4000


def test_without_a_fit_or_a_reading_only_what_is_counted_is_shown() -> None:
    assert parts(DeviceSnapshot(FIGURES, READY)) == {"weights": 500, "kv_used": 480, "kv_cached": 320, "kv_free": 800}
    assert [line["name"] for line in ledger_lines(DeviceSnapshot(FIGURES, READY))] == ["weights", "kv"]


def test_a_ledger_line_has_predicted_measured_and_used() -> None:
    card = DeviceSnapshot(FIGURES, READY, FIT, reading(4000, allocated=2500))
    lines = {line["name"]: line for line in ledger_lines(card)}
    assert lines["kv"] == {
        "name": "kv",
        "predicted_bytes": 1601,
        "measured_bytes": 1600,
        "used_bytes": 800,
        "note": "",
    }
    assert lines["activation"]["used_bytes"] == 2500 - 500 - 1600 - 100


@given(
    held=st.integers(0, 50),
    cached=st.integers(0, 50),
    free=st.integers(0, 50),
    kv_bytes=st.integers(0, 10**12),
    total=st.integers(0, 10**12),
    other=st.integers(0, 10**12),
)
def test_nothing_is_negative_and_the_pool_is_whole(
    held: int, cached: int, free: int, kv_bytes: int, total: int, other: int
) -> None:
    figures = replace(IDLE, kv_bytes=kv_bytes, blocks_held=held, blocks_cached=cached, blocks_free=free)
    card = DeviceSnapshot(figures, READY, FIT, reading(total, other))
    found = card_parts(card)
    assert all(part.bytes > 0 for part in found)
    assert sum(part.bytes for part in found if part.name.startswith("kv_")) == kv_bytes
    assert sum(part.bytes for part in found) >= total


def test_a_pool_without_a_free_block_has_nothing_free() -> None:
    figures = replace(IDLE, kv_bytes=1000, blocks_held=2, blocks_cached=1, blocks_free=0)
    assert parts(DeviceSnapshot(figures, READY)) == {"weights": 500, "kv_used": 666, "kv_cached": 334}
