"""Calls that were measured on an H200, traced again: what was equal to the byte there stays so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brim.model.catalogue import entries  # noqa: E402
from brim.records.trace import Phase  # noqa: E402
from brim.trace.build import build_model  # noqa: E402
from brim.trace.tracer import trace_model  # noqa: E402
from tests.conftest import sampled  # noqa: E402
from tests.gpu.check_trace import SHAPES, TOWERS, cut  # noqa: E402

FILE = Path(__file__).parents[2] / "benchmarks" / "results" / "trace_h200.json"
RUN: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
MEASURED: dict[str, dict[str, Any]] = {f"{row['model']} {row['phase']}": row for row in RUN["rows"]}
SAMPLE = ("gemma-4-12b vision", "qwen2-audio-7b audio", "qwen3-0.6b prefill2048_kv")


@pytest.mark.parametrize("name", sampled(tuple(MEASURED), SAMPLE))
def test_a_call_takes_what_was_measured(name: str) -> None:
    """Within 0.1 %: torch may be another than on that machine. Some models compute otherwise in other transformers."""
    row, version = MEASURED[name], RUN["versions"]["transformers"]
    if name not in SAMPLE and transformers.__version__ != version:
        pytest.skip(f"measured with transformers {version}")
    meta, attention = build_model(cut(entries()[row["model"]].config, row["layers"]))
    is_tower = row["phase"] in (Phase.VISION, Phase.AUDIO)
    shape = TOWERS[row["model"]] if is_tower else SHAPES[row["phase"]]
    traced = trace_model(meta, shape, name=row["model"], attention=attention)
    assert traced.peak_bytes == pytest.approx(row["allocated_bytes"], rel=0.001)
