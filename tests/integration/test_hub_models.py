"""A model named by its id on the hub: downloaded with progress, loaded, and found in the cache the next time."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("huggingface_hub")

from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.model.packaged import packaged_folder
from brim.records.progress import Stage
from tests.unit.model.hub_server import hub_on_this_machine


def test_an_engine_downloads_its_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = packaged_folder("brim-tiny")
    assert folder is not None
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    stages: list[Stage] = []
    greedy = SamplingParams(max_tokens=3, temperature=0)
    with hub_on_this_machine(monkeypatch, tmp_path, {"lab/tiny": files}) as hub:
        with Engine("lab/tiny", kv_tokens=512, device="cpu", progress=stages.append) as engine:
            found = engine.generate(["Ada"], greedy)
        assert sorted(hub.sent) == sorted(files)
        hub.sent.clear()
    downloads = [stage for stage in stages if stage.phase == "download"]
    assert downloads[-1].done == downloads[-1].total == len(files["model.safetensors"])
    with Engine("lab/tiny", kv_tokens=512, device="cpu") as engine:  # without the hub
        assert engine.generate(["Ada"], greedy)[0].tokens == found[0].tokens
