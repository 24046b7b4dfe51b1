"""A step in the device's queue, and its results on their way to the host."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from brim.engine.run.sampling.sampler import Sampled
from brim.engine.run.scoring.scores import PromptLogprobs
from brim.engine.schedule.plan import StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What a step drew, on the device, and the slots that it was drawn for."""

    sampled: Sampled
    slots: torch.Tensor  # int64 [rows]

    @property
    def tensors(self) -> list[torch.Tensor]:
        found = [getattr(self.sampled, field.name) for field in fields(self.sampled)]
        return [self.slots, *(tensor for tensor in found if tensor is not None)]


class Launched:
    """A step in the device's queue. Reading anything of it waits for the device to come so far, and no further."""

    def __init__(
        self,
        plan: StepPlan,
        drawn: Drawn | None,
        prompt: dict[int, PromptLogprobs],
        device: torch.device,
        read_first: bool = False,
    ) -> None:
        self.plan = plan
        self.drawn = drawn
        self.read_first = read_first  # before the next step is launched
        self.sampled = None if drawn is None else _on_the_way(drawn.sampled)
        self.prompt = {number: _on_the_way(scores) for number, scores in prompt.items()}  # by number of the chunk
        self._ready: torch.cuda.Event | None = None
        if device.type == "cuda":  # always: a step that draws nothing may score a prompt
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    def on_device(self, device: torch.device) -> list[torch.Tensor]:
        """What the device holds of its results: what was drawn, and scores of prompts unless the host has them."""
        scores = [getattr(one, field.name) for one in self.prompt.values() for field in fields(one)]
        found = [*(() if self.drawn is None else self.drawn.tensors), *(one for one in scores if one is not None)]
        return [tensor for tensor in found if tensor.device.type == device.type]

    def tokens(self) -> list[int]:
        """The tokens drawn, one for each of the plan's `drawing`. Waits for the device."""
        if self._ready is not None:
            self._ready.synchronize()
        return [] if self.sampled is None else self.sampled.tokens.tolist()


Tensors = TypeVar("Tensors", Sampled, PromptLogprobs)


def _on_the_way(record: Tensors) -> Tensors:
    """The same record with its tensors being copied to the host."""
    copies: dict[str, Any] = {field.name: _host_copy(getattr(record, field.name)) for field in fields(record)}
    return replace(record, **copies)


def _host_copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None or not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
