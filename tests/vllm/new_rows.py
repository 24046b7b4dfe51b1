"""Brim's worker, which ends the start if a build is warmed up (on a GPU: captured) with the rows of an earlier one."""

from __future__ import annotations

from typing import Any

import brim.vllm.worker
from brim.vllm.runner.engine import StockCalls, VllmEngine


class NewRows(VllmEngine):
    """Looks at the runner's rows where vLLM's warm-up begins."""

    def __init__(self, worker: Any, stock: StockCalls) -> None:
        def warm_up() -> Any:
            rows = worker.model_runner.input_batch
            assert not rows.num_prompt_tokens.any(), self.builds
            assert not rows.num_computed_tokens_cpu.any(), self.builds
            return stock.warm_up()

        super().__init__(worker, StockCalls(stock.initialize, warm_up))


brim.vllm.worker.VllmEngine = NewRows  # type: ignore[misc]
Worker = brim.vllm.worker.worker_class()
