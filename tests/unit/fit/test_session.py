"""A fit session over the fake engine of `brim.testing`: stored fits, neighbours, predictions, warnings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from brim.errors import DoesNotFit, InvalidRequest
from brim.fit import DeviceFacts, FitRanks, FitReport, FitRequest, FitSession, RequestAdapter, SessionOptions
from brim.ports import MemoryReading
from brim.units import KIB
from tests.unit.testing.adapters import Adapter, made

ASKED = FitRequest(probe_tokens=64, least_tokens=64, most_tokens=1 << 20, canary_bytes=32 * KIB)
KEY = {"model": "fake", "versions": ["1"]}


def session(adapter: Any, asked: RequestAdapter | None = None, **options: Any) -> FitSession:
    asked = asked or RequestAdapter(ASKED)
    return FitSession(adapter, adapter.engine.device, adapter.price, asked, **options)


def test_the_engine_is_left_built_with_the_canary_held() -> None:
    adapter = made(Adapter)
    report = session(adapter).run()
    assert adapter.blocks * adapter.engine.block_tokens == report.kv_tokens
    held = adapter.engine.device.reading().allocated_bytes
    assert held == 64 * KIB + report.kv_bytes + report.canary_bytes
    activation = 36 * KIB  # the largest step with its logits
    assert 0 <= (1 << 20) - held - activation < adapter.price(adapter.engine.block_tokens)


def test_a_stored_fit_is_validated_once_and_not_after_a_change(tmp_path: Path) -> None:
    said: list[str] = []
    stored = SessionOptions(store=tmp_path)
    first = session(made(Adapter), RequestAdapter(ASKED, KEY), options=stored).run()
    again = session(made(Adapter), RequestAdapter(ASKED, KEY), options=stored, say=said.append).run()
    assert (first.from_store, again.from_store, again.kv_tokens) == (False, True, first.kv_tokens)
    assert said == []
    changed = RequestAdapter(ASKED, {**KEY, "versions": ["2"]})
    other = session(made(Adapter), changed, options=stored, say=said.append).run()
    assert not other.from_store
    assert said == ["the stored fit is not used: not as at the stored start: versions"]


def test_a_store_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="store: a stored fit needs a key"):
        session(made(Adapter), options=SessionOptions(store=tmp_path)).run()


def test_what_stays_free_is_the_operator_s_or_the_device_s_default() -> None:
    facts = DeviceFacts(spills=True)
    spilling = session(made(Adapter), RequestAdapter(ASKED, device=facts)).run()
    assert (spilling.keep_free_bytes, spilling.provable) == (-(-(1 << 20) // 10), False)
    assert "nothing can be proven here" in spilling.warnings[0]
    asked = session(made(Adapter), RequestAdapter(ASKED, device=facts), options=SessionOptions(8 * KIB)).run()
    assert asked.keep_free_bytes == 8 * KIB
    assert asked.kv_tokens > spilling.kv_tokens


@dataclass
class PromisedPart:
    """A device of which others were promised so much."""

    promised_bytes: int
    keeps_promises: bool = True
    held: list[MemoryReading] = field(default_factory=list)

    def seen(self, reading: MemoryReading) -> MemoryReading:
        return replace(
            reading,
            free_bytes=reading.free_bytes - self.promised_bytes,
            other_bytes=reading.other_bytes + self.promised_bytes,
        )

    def hold(self, reading: MemoryReading) -> None:
        self.held.append(reading)

    def note(self) -> str:
        return "embedder (pid 1) promised 128.0 KiB"


def test_neighbours_keep_what_they_were_promised_and_learn_what_is_held() -> None:
    part, alone = PromisedPart(128 * KIB), session(made(Adapter)).run()
    adapter = made(Adapter)
    report = session(adapter, neighbours=part).run()
    assert alone.kv_bytes - report.kv_bytes == 128 * KIB
    assert part.held == [adapter.engine.device.reading()]
    (item,) = [one for one in report.items if one.name == "neighbours"]
    assert (item.measured_bytes, item.note) == (128 * KIB, part.note())


def test_what_does_not_fit_names_the_neighbours() -> None:
    with pytest.raises(DoesNotFit, match=r"neighbours: embedder \(pid 1\) promised"):
        session(made(Adapter), neighbours=PromisedPart(1 << 20)).run()


@dataclass
class Foreseen:
    """Predictions that were asked for."""

    fails: bool = False

    def scaling(self) -> None:
        return None

    def explained(self, error: DoesNotFit, request: FitRequest, before: MemoryReading) -> DoesNotFit:
        return DoesNotFit(f"{error}; {before.total_bytes} bytes are too few", error.missing_bytes)

    def compared(self, report: FitReport) -> FitReport:
        if self.fails:
            raise ValueError("no prediction")
        return replace(report, items=tuple(replace(one, predicted_bytes=7) for one in report.items))


def test_predictions_are_added_to_a_report_and_to_an_error() -> None:
    report = session(made(Adapter), predictions=Foreseen()).run()
    assert {one.predicted_bytes for one in report.items} == {7}
    too_many = replace(ASKED, kv_tokens=1 << 20)
    with pytest.raises(DoesNotFit, match="1048576 bytes are too few"):
        session(made(Adapter), RequestAdapter(too_many), predictions=Foreseen()).run()


def test_a_prediction_that_fails_leaves_nothing_built() -> None:
    adapter = made(Adapter)
    with pytest.raises(ValueError, match="no prediction"):
        session(adapter, predictions=Foreseen(fails=True)).run()
    assert adapter.engine.device.reading().allocated_bytes == 64 * KIB


def test_ranks_that_have_stored_different_sizes_search(tmp_path: Path) -> None:
    stored = SessionOptions(store=tmp_path)
    first = session(made(Adapter), RequestAdapter(ASKED, KEY), options=stored).run()
    compared: list[int] = []

    def exchange(word: Any) -> list[Any]:
        """Another rank says the same, but for the size that it has stored."""
        if word == first.kv_tokens and not compared:
            compared.append(word)
            return [word, word - 4]
        return [word, word]

    again = session(made(Adapter), RequestAdapter(ASKED, KEY), options=stored, ranks=FitRanks(0, exchange)).run()
    assert compared
    assert (again.from_store, again.kv_tokens) == (False, first.kv_tokens)
