"""Brim's worker on a device that refuses every step with a request of `REFUSED` answer tokens."""

from __future__ import annotations

from typing import Any

import brim.vllm.worker
from tests.vllm.starts import REFUSED


class Worker(brim.vllm.worker.worker_class()):  # type: ignore[misc]
    """Refuses inside of what Brim guards."""

    def load_model(self, *given: Any, **named: Any) -> None:
        import torch

        super().load_model(*given, **named)
        real, refused = self.model_runner.execute_model, set()

        def executed(step: Any, *rest: Any, **others: Any) -> Any:
            for new in step.scheduled_new_reqs:
                if new.sampling_params is not None and new.sampling_params.max_tokens == REFUSED:
                    refused.add(new.req_id)
            output = real(step, *rest, **others)
            if step.total_num_scheduled_tokens and refused & set(step.num_scheduled_tokens):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return output

        self.model_runner.execute_model = executed
