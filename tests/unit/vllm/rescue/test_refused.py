"""Where steps are not rescued, and that it is said by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import brim.vllm.rescue.refused
from brim.vllm.rescue.refused import in_report, rescue_refusal


@pytest.fixture(autouse=True)
def _has_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brim.vllm.rescue.refused, "_lacks", list)


def config(**changed: Any) -> Any:
    """A configuration that is rescued; a changed field is named with its place, as `place__field`."""
    made = SimpleNamespace(
        additional_config={},
        use_v2_model_runner=False,
        kv_transfer_config=None,
        ec_transfer_config=None,
        parallel_config=SimpleNamespace(worker_cls="brim.vllm.BrimWorker", world_size=1, data_parallel_size=1),
        scheduler_config=SimpleNamespace(scheduler_cls="brim.vllm.BrimScheduler", enable_chunked_prefill=True),
        model_config=SimpleNamespace(runner_type="generate"),
    )
    for path, value in changed.items():
        place, _, field = path.rpartition("__")
        setattr(getattr(made, place) if place else made, field, value)
    return made


def test_one_rank_with_brim_s_worker_is_rescued() -> None:
    assert rescue_refusal(config(), {}) == ""
    assert in_report(config(), {}) == "on"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"parallel_config__world_size": 2}, "several ranks"),
        ({"parallel_config__data_parallel_size": 2}, "several ranks"),
        ({"parallel_config__worker_cls": "auto"}, "the worker is not Brim's"),
        ({"parallel_config__worker_cls": "vllm.v1.worker.gpu_worker.Worker"}, "the worker is not Brim's"),
        ({"scheduler_config__enable_chunked_prefill": False}, "not cut into chunks"),
        ({"model_config__runner_type": "pooling"}, "draws no tokens"),
        ({"kv_transfer_config": object()}, "connectors"),
        ({"use_v2_model_runner": True}, "second model runner was not tried"),
        ({"additional_config": {"brim": {"rescue": "off"}}}, "switched off"),
        ({"additional_config": {"brim": {"enabled": False}}}, "switched off"),
    ],
)
def test_what_is_refused_is_named(changed: dict[str, Any], words: str) -> None:
    assert words in rescue_refusal(config(**changed), {})
    assert in_report(config(**changed), {}).startswith("off: ")


def test_the_second_runner_is_tried_where_the_operator_says_so() -> None:
    asked = config(use_v2_model_runner=True, additional_config={"brim": {"rescue": "on"}})
    assert rescue_refusal(asked, {}) == ""


@pytest.mark.parametrize("scheduler", [None, "mine.Scheduler"])
def test_another_scheduler_is_reported(scheduler: str | None) -> None:
    assert "--scheduler-cls brim.vllm.BrimScheduler" in in_report(config(scheduler_config__scheduler_cls=scheduler), {})


def test_off_in_the_environment_is_off() -> None:
    assert rescue_refusal(config(), {"BRIM": "off"}) == "it is switched off"
