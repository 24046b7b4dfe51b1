"""Rescues in vLLM's own metrics, while the engine runs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from brim.guard.rescue import Condition

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="make test-vllm installs it")


def test_gauges_follow_the_file_of_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import prometheus_client

    import brim.vllm.metrics
    from brim.vllm.rescue.gauges import RescueFile

    monkeypatch.setenv("BRIM_LEASES", str(tmp_path))
    monkeypatch.setattr(brim.vllm.metrics, "_SECONDS", 0.0)
    parallel = SimpleNamespace(data_parallel_index=0)
    config = SimpleNamespace(
        instance_id="here", parallel_config=parallel, model_config=SimpleNamespace(served_model_name="m")
    )
    file = RescueFile.of(config)
    file.write(Condition(512))
    gauges = brim.vllm.metrics.BrimGauges(config)
    labels = {"model_name": "m", "engine": "0"}
    shown = prometheus_client.REGISTRY.get_sample_value
    assert (shown("brim:rescues_total", labels), shown("brim:step_token_limit", labels)) == (0, 512)
    file.write(Condition(256, rescues=3))
    gauges.record()
    assert (shown("brim:rescues_total", labels), shown("brim:step_token_limit", labels)) == (3, 256)
    assert shown("brim:kv_tokens", labels) is None  # nothing was sized here
