"""What vLLM was told about its memory, as the fit sees it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from brim.fit.ranks import ONE_RANK
from brim.records.memory import DeviceFacts
from brim.units import KIB, MIB
from brim.vllm import sizing
from brim.vllm.runner.steps import SchedulerLimits
from brim.vllm.settings import WorkerSettings
from brim.vllm.sizing import is_cap
from tests.unit.fit.sizable import HonestEngine, WatchedProbe


@dataclass
class CacheConfig:
    """vLLM's, as far as it matters."""

    gpu_memory_utilization: float = 0.92


def test_a_utilization_that_is_not_the_default_is_a_cap() -> None:
    assert is_cap(CacheConfig(0.5), WorkerSettings())
    assert not is_cap(CacheConfig(), WorkerSettings())


def test_the_default_is_a_cap_where_the_operator_wrote_it() -> None:
    assert is_cap(CacheConfig(), WorkerSettings(utilization_given=True))


@pytest.mark.parametrize(("device", "taken"), [("cuda", 5 * MIB), ("cpu", 0)])
def test_what_front_processes_may_take_is_read_from_the_worker_s_own_rule(device: str, taken: int) -> None:
    worker = SimpleNamespace(
        device=SimpleNamespace(type=device), _reserve_mm_ipc_gpu_memory=lambda available: available - 5 * MIB
    )
    assert sizing.front_bytes(worker) == taken


@dataclass
class Drafts:
    """vLLM's, as far as it matters."""

    method: str
    draft_sample_method: str = "greedy"
    target_model_config: object = None
    limits: dict[str, CacheConfig] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"Drafts({self.method})"


def test_a_stored_fit_depends_on_what_a_configuration_does_not_say_in_words() -> None:
    greedy, drawn = Drafts("eagle"), Drafts("eagle", "probabilistic")
    assert str(greedy) == str(drawn)
    assert sizing.plain_values(greedy) != sizing.plain_values(drawn)


def test_a_stored_fit_depends_on_nested_values_and_not_on_configurations_of_others() -> None:
    one, other = (Drafts("eagle", limits={"image": CacheConfig(part)}) for part in (0.5, 0.6))
    assert sizing.plain_values(one) != sizing.plain_values(other)
    assert sizing.plain_values(Drafts("eagle")) == sizing.plain_values(Drafts("eagle", target_model_config=object()))
    assert json.dumps(sizing.plain_values(one))


class Runner(HonestEngine):
    """An engine with what only vLLM's has."""

    probe_tokens, least_tokens = 16, 8
    limits = SchedulerLimits(batch_tokens=64, rows=4, length=16)

    @property
    def blocks(self) -> Runner:
        return self


def test_where_the_driver_spills_nothing_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "device_facts", lambda worker: DeviceFacts(spills=True))
    monkeypatch.setattr(sizing, "_decisive", lambda *parts: {})
    cache = SimpleNamespace(num_gpu_blocks_override=None, kv_cache_memory_bytes=None)
    worker = SimpleNamespace(device=SimpleNamespace(type="cpu"), vllm_config=SimpleNamespace(cache_config=cache))
    settings = WorkerSettings(canary_bytes=8 * KIB, store=tmp_path)
    for from_store in (False, True):
        engine = Runner(WatchedProbe(8 * MIB))
        report = sizing._fitted(worker, engine, engine.probe, settings, ONE_RANK, None, lambda words: None)  # type: ignore[arg-type]
        assert (report.provable, report.from_store) == (False, from_store)
        assert ["nothing can be proven" in warning for warning in report.warnings] == [True]
