"""Gauges of the fit in vLLM's own `/metrics`.

vLLM's front process makes a `BrimGauges` (`brim.vllm.plugin` makes it known) when its engine is up. The figures come
from the file that rank 0 of the worker has written: the fit does not change while a server runs. Where Brim's worker
was not sized there is no file, and nothing is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brim.vllm.report import found_report

if TYPE_CHECKING:
    Base = object
else:
    from vllm.v1.metrics.loggers import StatLoggerBase as Base

GAUGES = {
    "brim:kv_tokens": ("kv_tokens", "KV tokens that the fit has proven"),
    "brim:kv_bytes": ("kv_bytes", "Device memory of the KV cache"),
    "brim:canary_bytes": ("canary_bytes", "Safety margin that was held while the size was proven"),
    "brim:headroom_bytes": ("free_bytes", "Free on the device after the last worst step, the canary held"),
    "brim:kept": ("kept", "1: what serves is what was proven"),
}


class BrimGauges(Base):
    """One gauge for each figure, with vLLM's labels."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        fronts = getattr(vllm_config.parallel_config, "_api_process_count", 1)
        report = found_report(vllm_config.instance_id, engine_index, fronts)
        if report is not None:
            _show(report, vllm_config.model_config.served_model_name, str(engine_index))

    def record(self, *figures: Any, **named: Any) -> None:
        """Nothing changes from step to step."""

    def log_engine_initialized(self) -> None:
        """The worker has logged the fit."""


def _show(report: dict[str, Any], model: str, engine: str) -> None:
    import prometheus_client

    for name, (field, words) in GAUGES.items():
        known = getattr(prometheus_client.REGISTRY, "_names_to_collectors", {}).get(name)
        gauge = known or prometheus_client.Gauge(
            name, words, labelnames=["model_name", "engine"], multiprocess_mode="mostrecent"
        )
        gauge.labels(model_name=model, engine=engine).set(float(report[field] or 0))
