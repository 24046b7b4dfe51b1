"""The rescues of a scheduler as a file, from which the front process takes its gauges (`RescueFile`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.guard.rescue import Condition
from brim.vllm.report import shared_file, signed, write_json


@dataclass(slots=True)
class RescueFile:
    """Written when it changes, which is rare: steps do not wait for it."""

    path: Path
    _written: tuple[int, int, int] | None = field(default=None)

    @classmethod
    def of(cls, vllm_config: Any) -> RescueFile:
        return cls(shared_file(vllm_config.instance_id, vllm_config.parallel_config.data_parallel_index, "rescues"))

    def write(self, condition: Condition) -> None:
        now = (condition.rescues, condition.ended_requests, condition.step_tokens)
        if now == self._written:
            return
        self._written = now
        rescues, ended, tokens = now
        try:
            write_json(self.path, signed({"rescues": rescues, "ended_requests": ended, "step_token_limit": tokens}))
        except OSError as error:
            from vllm.logger import init_logger

            init_logger("vllm.brim").warning("brim: rescues cannot be shown in /metrics: %s", error)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
