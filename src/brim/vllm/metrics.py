"""Gauges of the fit and of rescues in vLLM's own `/metrics`.

vLLM's front process makes a `BrimGauges` (`brim.vllm.plugin` makes it known) when its engine is up. The figures come
from files. Rank 0 of the worker has written the fit, which does not change while a server runs; the scheduler writes
its rescues when there is a new one, and they are read again every second while steps run. Where there is no file,
nothing is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from brim.vllm.report import found_file, read_report

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
RESCUE_GAUGES = {
    "brim:rescues_total": ("rescues", "Steps that ran out of memory and were run again in parts"),
    "brim:rescue_ended_requests_total": ("ended_requests", "Requests that could not run alone and ended with an error"),
    "brim:step_token_limit": ("step_token_limit", "Most tokens of a step; repeated rescues lower it for a while"),
}
_SECONDS = 1.0  # between two looks at the rescues


class BrimGauges(Base):
    """One gauge for each figure, with vLLM's labels."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        fronts = getattr(vllm_config.parallel_config, "_api_process_count", 1)
        asked = (vllm_config.instance_id, engine_index, fronts)
        self._labels = {"model_name": vllm_config.model_config.served_model_name, "engine": str(engine_index)}
        self._rescues = found_file(*asked, "rescues")
        self._next_look = 0.0
        self._show(GAUGES, found_file(*asked))
        self._look()

    def record(self, *figures: Any, **named: Any) -> None:
        """vLLM calls it after steps; a fit does not change."""
        if monotonic() >= self._next_look:
            self._look()

    def log_engine_initialized(self) -> None:
        """The worker has logged the fit."""

    def _look(self) -> None:
        self._next_look = monotonic() + _SECONDS
        self._show(RESCUE_GAUGES, self._rescues)

    def _show(self, gauges: Mapping[str, tuple[str, str]], file: Path | None) -> None:
        import prometheus_client

        figures = None if file is None else read_report(file)
        if figures is None:
            return
        for name, (field, words) in gauges.items():
            known = getattr(prometheus_client.REGISTRY, "_names_to_collectors", {}).get(name)
            gauge = known or prometheus_client.Gauge(
                name, words, labelnames=list(self._labels), multiprocess_mode="mostrecent"
            )
            gauge.labels(**self._labels).set(float(figures.get(field) or 0))
