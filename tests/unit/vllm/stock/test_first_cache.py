"""The KV cache of a first start leaves the weights their place."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brim.errors import DoesNotFit, InvalidRequest
from brim.reserve.devices import Budget
from brim.reserve.hold import take
from brim.units import GIB
from brim.vllm.settings import WorkerSettings
from brim.vllm.stock.first_cache import checkpoint_bytes, first_kv_bytes, left_bytes

LAB = Budget("cpu:first-cache", 80 * GIB)


def arguments(model: str = "absent/model", **changed: Any) -> SimpleNamespace:
    usual = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "device_ids": None,
        "speculative_config": None,
    }
    return SimpleNamespace(model=model, **usual | changed)


def checkpoint(folder: Path, weights_bytes: int) -> str:
    """A folder with the header of a checkpoint, and a file as large as it says without any content."""
    folder.mkdir()
    header = json.dumps({"w": {"dtype": "U8", "shape": [weights_bytes], "data_offsets": [0, weights_bytes]}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + weights_bytes)
    return str(folder)


def first(arguments: SimpleNamespace, budget_bytes: int = 80 * GIB) -> int:
    return first_kv_bytes(WorkerSettings(budget_bytes=budget_bytes), arguments, on_cpu=True)


def test_a_quarter_of_what_the_weights_leave(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "model", 64 * GIB)
    assert checkpoint_bytes(model) == 64 * GIB
    assert first(arguments(model)) == 4 * GIB
    assert first(arguments(model, tensor_parallel_size=2)) == 12 * GIB
    assert first(arguments(model, speculative_config={"model": checkpoint(tmp_path / "draft", 8 * GIB)})) == 2 * GIB


def test_weights_that_are_not_here_are_not_known() -> None:
    assert first(arguments()) == 20 * GIB


def test_weights_in_other_files_count(tmp_path: Path) -> None:
    for name in ("pytorch_model-1.bin", "pytorch_model-2.bin"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(5 * GIB)
    assert checkpoint_bytes(str(tmp_path)) == 10 * GIB
    assert checkpoint_bytes(str(tmp_path / "pytorch_model-1.bin")) == 5 * GIB


def test_weights_that_shrink_while_they_load_leave_something(tmp_path: Path) -> None:
    assert first(arguments(checkpoint(tmp_path / "model", 90 * GIB))) == 80 * GIB // 16 // 4


def test_a_damaged_file_is_left_to_vllm(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    assert checkpoint_bytes(str(tmp_path)) == 0


def test_the_cpu_needs_a_budget() -> None:
    with pytest.raises(InvalidRequest, match=r"additional_config\.brim\.budget is not set"):
        first_kv_bytes(WorkerSettings(), arguments(), on_cpu=True)


def test_neighbours_keep_what_they_were_promised() -> None:
    named = WorkerSettings(budget_bytes=LAB.total_bytes, budget_name=LAB.key)
    lease = take(LAB, 79 * GIB, "embedder", starting=True)
    try:
        assert left_bytes(named, arguments(), on_cpu=True) == GIB
        assert left_bytes(WorkerSettings(budget_bytes=GIB), arguments(), on_cpu=True) == GIB
        other = take(LAB, GIB, "tower")
        with pytest.raises(DoesNotFit, match="promised all of the 80"):
            left_bytes(named, arguments(), on_cpu=True)
        other.release()
    finally:
        lease.release()


@pytest.mark.parametrize(
    ("changed", "left"),
    [({}, 70), ({"tensor_parallel_size": 2}, 40), ({"device_ids": [1]}, 40), ({"device_ids": ["GPU-c"]}, 60)],
)
def test_the_tightest_gpu_of_the_ranks_decides(
    changed: dict[str, Any], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"GPU-a": 70, "GPU-b": 40, "GPU-c": 60}

    def usage(uuid: str) -> SimpleNamespace:
        return SimpleNamespace(total_bytes=80 * GIB, free_bytes=free[uuid] * GIB)

    monkeypatch.setattr("brim.probes.visible.visible_gpus", lambda: [SimpleNamespace(uuid=uuid) for uuid in free])
    monkeypatch.setattr("brim.probes.usage.gpu_usage", usage)
    assert left_bytes(WorkerSettings(), arguments(**changed), on_cpu=False) == left * GIB
    with pytest.raises(InvalidRequest, match="no GPU 7"):
        left_bytes(WorkerSettings(), arguments(device_ids=[7]), on_cpu=False)
