from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.model.catalogue import entries
from brim.model.source import load_model
from brim.planning.activation import ForwardShape, step_bytes
from brim.records.plan import Source
from brim.records.trace import ActivationCurve, CurvePoint, Phase
from brim.trace.store import CurveStore, fingerprint, shipped_curve
from brim.trace.versions import traced_with


def curve(function: object, sizes: tuple[int, ...] = (256, 2048, 8192)) -> ActivationCurve:
    points = tuple(CurvePoint(size, function(size), function(size) + 1000) for size in sizes)  # type: ignore[operator]
    return ActivationCurve("some", Phase.PREFILL, "tokens", points, 0.0, traced_with() or "none")


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 20), st.integers(1, 1 << 20))
def test_a_quadratic_is_met_everywhere(constant: int, linear: int, square: int, size: int) -> None:
    def truth(n: int) -> int:
        return constant + linear * n + square * n * n

    assert curve(truth).peak_bytes(size) == truth(size)
    assert curve(truth).reserved_bytes(size) == truth(size) + 1000


def test_it_is_exact_at_its_points_whatever_they_are() -> None:
    bent = {256: 10, 2048: 9999, 8192: 10000}
    found = curve(lambda size: bent[size])
    assert [found.peak_bytes(size) for size in bent] == list(bent.values())


def test_a_curve_is_kept_and_read_back(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    store, spec = CurveStore(tmp_path / "deep" / "store"), load_model("qwen3-8b")
    assert store.read(spec, Phase.PREFILL) is None
    made = curve(lambda size: 7 * size)
    store.write(spec, made)
    assert store.read(spec, Phase.PREFILL) == made
    assert store.read(spec, Phase.VISION) is None
    assert store.read(load_model("qwen3-4b"), Phase.PREFILL) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"points": 3}', "flip"])
def test_a_damaged_entry_is_ignored(tmp_path: Path, damage: str) -> None:
    pytest.importorskip("torch")
    store, spec = CurveStore(tmp_path), load_model("qwen3-8b")
    path = store.write(spec, curve(lambda size: 7 * size))
    whole = path.read_text()
    path.write_text(whole.replace("1792", "1793") if damage == "flip" else damage)
    assert store.read(spec, Phase.PREFILL) is None
    path.write_text(whole)
    assert store.read(spec, Phase.PREFILL) is not None


def test_parallel_writers_leave_a_whole_entry(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    store, spec = CurveStore(tmp_path), load_model("qwen3-8b")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.write(spec, curve(lambda size: n * size)), range(1, 40)))
    assert store.read(spec, Phase.PREFILL) is not None
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_a_fingerprint_is_of_dimensions_not_of_files() -> None:
    assert fingerprint(load_model("qwen3-8b"), Phase.PREFILL) == fingerprint(load_model("Qwen/Qwen3-8B"), Phase.PREFILL)
    prints = {fingerprint(load_model(name), Phase.PREFILL) for name in ("qwen3-8b", "qwen3-4b", "llama-3.1-8b")}
    assert len(prints) == 3


def test_shipped_curves_agree_with_the_formula() -> None:
    """Both are of the same code: they differ by what the formula leaves out."""
    compared = 0
    for name in entries():
        spec = load_model(name)
        found = shipped_curve(spec, Phase.PREFILL)
        if found is None or spec.indexes:
            continue
        compared += 1
        formula = step_bytes(spec, ForwardShape(8192))
        assert -0.06 <= formula / found.peak_bytes(8192) - 1 <= 0.30, name
    assert compared >= 60


def test_a_plan_says_that_it_is_traced(tmp_path: Path) -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h100", cache=tmp_path)
    assert plan.item("activation").source is Source.TRACED
    assert plan.activation_bytes == 977338368  # as measured on an H200 with 8192 tokens
    formula = brim.plan("llama-3.1-8b", gpu="h100", cache=tmp_path, trace=False)
    assert formula.item("activation").source is Source.FORMULA
    assert json.dumps(plan.to_json())
