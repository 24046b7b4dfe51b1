"""Brim's worker, which ends the start if its fit never made the drafter draft."""

from __future__ import annotations

from typing import Any

import brim.vllm.worker


class Worker(brim.vllm.worker.worker_class()):  # type: ignore[misc]
    """Notes how many tokens the drafter was asked for."""

    def determine_available_memory(self) -> int:
        drafter, asked = self.model_runner.drafter, []
        stock = drafter.propose

        def propose(*given: Any, **named: Any) -> Any:
            asked.append(named.get("num_speculative_tokens", given[0] if given else None))
            return stock(*given, **named)

        drafter.propose = propose
        try:
            available: int = super().determine_available_memory()
        finally:
            drafter.propose = stock
        assert self.vllm_config.speculative_config.num_speculative_tokens in asked, asked
        return available
