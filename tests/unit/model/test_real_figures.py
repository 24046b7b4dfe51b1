"""Published models: parameters and weights within 0.5 %, the cache of a request within 1 % of known figures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brim.model.kv import kv_footprint
from brim.model.source import load_model
from brim.model.weights import weight_bytes
from brim.records.model import Dtype
from tests.conftest import CONFIGS

_FILE = CONFIGS.parent / "truth" / "plan_truth.json"
TRUTH: dict[str, dict[str, Any]] = json.loads(_FILE.read_text()) if _FILE.is_file() else {}


@pytest.mark.skipif(not TRUTH, reason="the figures are not here")
@pytest.mark.parametrize("name", sorted(TRUTH))
def test_a_published_model(name: str) -> None:
    spec, truth = load_model(str(CONFIGS / name)), TRUTH[name]
    if "params" in truth:
        assert spec.parameters == pytest.approx(truth["params"], rel=0.005)
    if "weights_bytes" in truth:
        assert weight_bytes(spec).total_bytes == pytest.approx(truth["weights_bytes"], rel=0.005)
    request = kv_footprint(spec, Dtype.BF16).request_bytes(8192)
    assert request == pytest.approx(truth["request_bytes_8192_bf16"], rel=truth.get("request_tolerance", 0.01))
