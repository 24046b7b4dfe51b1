"""Incidents with known causes: how often the rules are right, on the half that they were not written with."""

from __future__ import annotations

import json

import pytest

from brim.explain.causes import MemoryCause
from brim.explain.explanation import explain
from tests.unit.explain.incidents import FOLDER, HELD, OPEN, KnownIncident, known_incidents

KEYS = {"cause", "confidence", "evidence", "timeline", "ledger", "fixes", "unknown"}


def said(incident: KnownIncident) -> str:
    return str(explain(incident.files).diagnosis.cause)


@pytest.mark.parametrize("half", [OPEN, HELD])
def test_at_least_85_percent_are_right_and_at_most_5_are_wrong(half: str) -> None:
    causes = {one.name: (one.cause, said(one)) for one in known_incidents() if one.half == half}
    right = [name for name, (known, found) in causes.items() if known == found]
    wrong = [name for name, (known, found) in causes.items() if found not in (known, MemoryCause.UNKNOWN)]
    assert len(right) >= 0.85 * len(causes), {name: both for name, both in causes.items() if name not in right}
    assert len(wrong) <= 0.05 * len(causes), wrong


def test_the_corpus_is_large_and_varied() -> None:
    incidents = known_incidents()
    assert len(incidents) >= 60
    assert all(one.files for one in incidents)
    assert len({one.cause for one in incidents} - {MemoryCause.UNKNOWN}) >= 10
    assert {one.cause for one in incidents} <= set(MemoryCause)
    halves = [one.half for one in incidents]
    assert abs(halves.count(OPEN) - halves.count(HELD)) <= 0.1 * len(halves)
    assert all(one.source.startswith(("https://", "scripts/")) for one in incidents)
    names = {one.name for one in incidents}
    assert {path.name.split(".")[0] for path in FOLDER.iterdir()} - names == {"incidents", "README"}


@pytest.mark.parametrize("incident", known_incidents(), ids=lambda one: one.name)
def test_every_explanation_has_the_stable_keys(incident: KnownIncident) -> None:
    found = explain(incident.files).to_json()
    assert found.keys() >= KEYS
    json.dumps(found)
    assert all(
        {"engine", "flag", "value", "kv_tokens_before", "kv_tokens_after"} <= fix.keys() for fix in found["fixes"]
    )
    if found["cause"] == MemoryCause.UNKNOWN:
        assert found["unknown"]
        assert not found["fixes"]
    else:
        assert found["evidence"]
