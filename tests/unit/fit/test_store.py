"""Fits on disk: what was written comes back, and anything else is ignored."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.fit.store import FitStore, find_stored, fingerprint
from brim.records.fit import Attempt, AttemptOutcome, FitItem, FitReport, FitSeconds
from brim.records.scaling import (
    Coefficients,
    Law,
    MeasuredShape,
    Residual,
    Scaling,
    ScalingMode,
    ScalingReport,
    StepPhase,
)
from brim.sealed import seal, unseal
from brim.units import GIB, MIB

REPORT = FitReport(
    kv_tokens=1000,
    kv_bytes=128_000,
    canary_bytes=4096,
    attempts=(Attempt(1100, AttemptOutcome.OUT_OF_MEMORY, 512), Attempt(1000, AttemptOutcome.PROVEN)),
    items=(FitItem("weights", 10, 11, "a note"), FitItem("kv", None, 128_000)),
    seconds=FitSeconds(0.5, 1.0, 0.25, 0.5, 1.5, 0.25, 0.125, 4.125),
    from_store=False,
    total_bytes=24 * GIB,
    free_bytes=100,
    limit_tokens=1200,
    needed_tokens=600,
    needed_bytes=76_800,
    warnings=("a warning",),
    scaling=ScalingReport(
        mode=ScalingMode.AUTO,
        scaling=Scaling(
            Law(Coefficients(100.0, 20.5, 3.0, 0.25, slice_units=2048), 7.5, 0.01, 512),
            Law(Coefficients(constant_bytes=50.0, bytes_per_carried_token=2.0), allowance=0.01),
        ),
        residuals=(
            Residual(MeasuredShape(StepPhase.PREFILL, 1, 512, 0, 1000), 1010),
            Residual(MeasuredShape(StepPhase.NEXT_TOKEN, 4, 4, 0, 60, held_back=True), 61, 59),
        ),
        budget_bytes=130_000,
        derived_margin_percent=0.5,
        given_margin_percent=None,
        kv_tokens_without_rebuild=999,
    ),
)
PARTS = {"model": "llama", "device": "H200", "versions": ["1"]}
NAME = fingerprint(PARTS)


def kept(folder: Path, **changes: Any) -> FitStore:
    store = FitStore(folder)
    store.write(PARTS, replace(REPORT, **changes), 20 * GIB)
    return store


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    assert kept(tmp_path / "not" / "there").find(PARTS, 20 * GIB).report == REPORT


def test_another_fingerprint_finds_nothing(tmp_path: Path) -> None:
    found = kept(tmp_path).find({**PARTS, "model": "other"}, 20 * GIB)
    assert (found.report, found.unused) == (None, "")


def test_what_has_changed_since_a_start_of_the_same_model_is_named(tmp_path: Path) -> None:
    store = kept(tmp_path)
    store.write({**PARTS, "versions": ["2"], "settings": 5}, REPORT, 20 * GIB)
    found = store.find({**PARTS, "versions": ["3"]}, 20 * GIB)
    assert (found.report, found.unused) == (None, "not as at the stored start: versions")


def test_a_report_says_why_the_stored_one_was_not_used_and_takes_its_place(tmp_path: Path) -> None:
    store = kept(tmp_path)
    fresh = store.find(PARTS, 18 * GIB).kept(
        replace(REPORT, kv_tokens=900, attempts=(Attempt(900, AttemptOutcome.PROVEN),))
    )
    assert fresh.stored_unused == "20.00 GiB were free at that start, and 18.00 GiB are now"
    again = store.find(PARTS, 18 * GIB)
    assert again.report == fresh
    assert again.kept(REPORT).stored_unused == "its 900 tokens were not proven again"
    assert again.kept(replace(REPORT, from_store=True)) == replace(REPORT, from_store=True)


def test_without_a_folder_nothing_is_found_and_nothing_kept() -> None:
    found = find_stored(None, PARTS, 20 * GIB)
    assert (found.report, found.unused, found.kept(REPORT)) == (None, "", REPORT)


def test_a_fit_that_cannot_be_stored_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (*_, warning) = find_stored(tmp_path / "file", PARTS, 20 * GIB).kept(REPORT).warnings
    assert "could not be stored" in warning


def test_an_entry_under_another_name_is_ignored(tmp_path: Path) -> None:
    store, other = kept(tmp_path), {"model": "other"}
    (tmp_path / f"{NAME}.json").rename(tmp_path / f"{fingerprint(other)}.json")
    assert store.find(other, 20 * GIB).report is None


@pytest.mark.parametrize(("more", "found"), [(0, True), (64, True), (-64, True), (65, False), (-65, False)])
def test_another_free_memory_finds_nothing(tmp_path: Path, more: int, found: bool) -> None:
    assert (kept(tmp_path).find(PARTS, 20 * GIB + more * MIB).report is not None) is found


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_file_is_ignored(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = kept(folder)
    path = folder / f"{NAME}.json"
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(whole[:place])
    else:
        path.write_bytes(whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :])
    assert store.find(PARTS, 20 * GIB).report in (None, REPORT)  # a byte may have been replaced by itself


@pytest.mark.parametrize("content", ["", "null", "[]", "{}", '"text"', "{", "\x00"])
def test_something_else_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / f"{NAME}.json").write_text(content)
    assert FitStore(tmp_path).find(PARTS, 20 * GIB).report is None


def test_a_folder_in_its_place_is_ignored(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.json").mkdir()
    assert FitStore(tmp_path).find(PARTS, 20 * GIB).report is None


WRONG: list[dict[str, Any]] = [
    {"report": None},
    {"report": {}},
    {"report": "text"},
    {"free_before_bytes": "much"},
    {"free_before_bytes": None},
    {"fingerprint": "other"},
]
WRONG_REPORTS: list[dict[str, Any]] = [
    {"kv_tokens": 2000},  # not what was proven
    {"kv_tokens": None},
    {"kv_tokens": "1000"},
    {"attempts": []},
    {"attempts": [{"kv_tokens": 1000, "outcome": "out-of-memory", "shortfall_bytes": 5}]},
    {"attempts": [{"kv_tokens": 1000, "outcome": "maybe", "shortfall_bytes": None}]},
    {"attempts": [{"kv_tokens": 1000}]},
    {"attempts": 5},
    {"seconds": None},
    {"items": [{"name": "weights"}]},
    {"scaling": {"mode": "auto"}},
    {"scaling": {**REPORT.to_json()["scaling"], "prefill": {"bytes_per_unit": -1}}},
    {"a_field_of_the_future": 1},
]


@pytest.mark.parametrize("wrong", [*WRONG, *({"report": {**REPORT.to_json(), **one}} for one in WRONG_REPORTS)])
def test_a_whole_entry_with_other_content_is_ignored(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """The checksum is right: another version of Brim, or a hand, wrote it."""
    store = kept(tmp_path)
    path = tmp_path / f"{NAME}.json"
    body = unseal(json.loads(path.read_text()))
    assert body is not None
    path.write_text(json.dumps(seal({**body, **wrong})))
    assert store.find(PARTS, 20 * GIB).report is None


@pytest.mark.parametrize("name", ["needed_tokens", "needed_bytes", "total_bytes", "scaling"])
def test_an_entry_of_an_older_version_is_ignored(tmp_path: Path, name: str) -> None:
    """It lacks what this version reports."""
    store = kept(tmp_path)
    path = tmp_path / f"{NAME}.json"
    body = unseal(json.loads(path.read_text()))
    assert body is not None
    del body["report"][name]
    path.write_text(json.dumps(seal(body)))
    assert store.find(PARTS, 20 * GIB).report is None


def test_fingerprints_differ_in_every_part() -> None:
    parts: dict[str, Any] = {"model": {"hidden": 5, "layers": [1, 2]}, "settings": {"max_batch": 4}, "versions": ["1"]}
    assert fingerprint(parts) == fingerprint(dict(reversed(parts.items())))
    changed = [{**parts, "model": {"hidden": 6}}, {**parts, "versions": ["2"]}, {**parts, "rank": 0}]
    assert len({fingerprint(one) for one in (parts, *changed)}) == 4


def test_a_folder_that_cannot_be_read_has_no_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path, pattern: str) -> Iterator[Path]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "glob", broken)
    found = FitStore(tmp_path).find({"model": "m"}, free_bytes=1)
    assert (found.report, found.unused) == (None, "")
