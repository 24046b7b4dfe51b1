"""What is refused inside vLLM, by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brim.errors import InvalidRequest
from brim.vllm.refusals import check_allowed, refusals


def config(**changed: Any) -> SimpleNamespace:
    """A configuration of vLLM that is sized, but for what is given as `part__name`."""
    parts: dict[str, dict[str, Any]] = {
        "cache_config": {"kv_offloading_size": None},
        "model_config": {"enable_sleep_mode": False, "runner_type": "generate"},
        "parallel_config": {
            "enable_elastic_ep": False,
            "data_parallel_size": 1,
            "distributed_executor_backend": "uni",
        },
    }
    whole: dict[str, Any] = {"kv_transfer_config": None, "ec_transfer_config": None}
    for path, value in changed.items():
        part, _, name = path.partition("__")
        if name:
            parts[part][name] = value
        else:
            whole[part] = value
    return SimpleNamespace(**whole, **{name: SimpleNamespace(**fields) for name, fields in parts.items()})


def test_a_plain_server_is_sized() -> None:
    assert refusals(config()) == ()


def test_replicas_of_a_mixture_of_experts_are_sized() -> None:
    assert refusals(config(parallel_config__data_parallel_size=2)) == ()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"model_config__enable_sleep_mode": True}, "sleep mode"),
        ({"kv_transfer_config": SimpleNamespace(kv_connector="NixlConnector")}, "connectors"),
        ({"parallel_config__enable_elastic_ep": True}, "elastic"),
        ({"parallel_config__distributed_executor_backend": "ray"}, "executor"),
    ],
)
def test_what_was_not_tried_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    found = refusals(config(**changed))
    assert [named in one.what for one in found] == [True]
    with pytest.raises(InvalidRequest, match=named):
        check_allowed(found, stock_where_refused=False)
    check_allowed(found, stock_where_refused=True)


CONNECTOR = SimpleNamespace(kv_connector="OffloadingConnector")


@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"kv_transfer_config": CONNECTOR}, "--kv-transfer-config"),
        ({"kv_transfer_config": CONNECTOR, "cache_config__kv_offloading_size": 4.0}, "--kv-offloading-size"),
        ({"ec_transfer_config": SimpleNamespace()}, "--ec-transfer-config"),
    ],
)
def test_the_remedy_names_the_flag_that_was_written(changed: dict[str, Any], flag: str) -> None:
    assert [one.remedy for one in refusals(config(**changed))] == [f"start without {flag}"]


def test_missing_names_are_a_refusal() -> None:
    (found,) = refusals(config(), missing=("v1.worker.gpu_worker.Worker.gone",))
    assert "gpu_worker.Worker.gone" in found.what
    assert "two starts" in found.remedy


def test_a_pooling_model_is_left_to_stock_vllm() -> None:
    found = refusals(config(model_config__runner_type="pooling"))
    assert ["pooling" in one.what for one in found] == [True]
    check_allowed(found, stock_where_refused=False)
