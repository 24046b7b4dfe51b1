"""Workers of a mixture of experts that is replicated on the CPU, where stock vLLM cannot run one.

Its communicator of the CPU lacks the two collectives by which experts get the tokens of other replicas, and its kernel
knows no expert of another rank. Both are added here, of gloo's collectives and torch; everything else is vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.parallel_state import get_ep_group
from vllm.v1.worker.cpu_worker import CPUWorker

import brim.vllm.worker
from brim.records.memory import StressShape
from brim.units import MIB
from brim.vllm.runner.engine import VllmEngine

TAKEN_BYTES = 2 * MIB  # of less than 4 that are free, nearly 3 of which a step takes


def all_gatherv(communicator: Any, given: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """The rows of all ranks, which may have different numbers of them."""
    assert dim == 0
    tensors = given if isinstance(given, list) else [given]
    sizes = sizes or [tensors[0].shape[0]] * communicator.world_size
    found = [_gathered(communicator.device_group, one, sizes) for one in tensors]
    return found if isinstance(given, list) else found[0]


def _gathered(group: Any, mine: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Of padded rows: gloo gathers tensors of one shape only."""
    padded = mine.new_zeros((max(sizes), *mine.shape[1:]))
    padded[: mine.shape[0]] = mine
    parts = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(parts, padded, group=group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def reduce_scatterv(communicator: Any, given: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """This rank's rows of the sum."""
    assert dim == 0
    sizes = sizes or [given.shape[0] // communicator.world_size] * communicator.world_size
    total = given.clone()
    torch.distributed.all_reduce(total, group=communicator.device_group)
    ends, rank = list(accumulate(sizes)), communicator.rank_in_group
    return total[ends[rank] - sizes[rank] : ends[rank]].clone()


def with_own_experts(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of the CPU, given this rank's experts only: to it, those of other ranks weigh nothing."""

    def computed(out: Any, rows: Any, w13: Any, w2: Any, b13: Any, b2: Any, weights: Any, ids: Any, *more: Any) -> None:
        local = ids - get_ep_group().rank_in_group * w13.shape[0]
        here = (local >= 0) & (local < w13.shape[0])
        kernel(out, rows, w13, w2, b13, b2, weights * here, torch.where(here, local, 0).to(ids.dtype), *more)

    computed.default = kernel.default  # type: ignore[attr-defined]  # torch looks it up under dispatch modes
    return computed


class Supplied:
    """A worker with what the CPU lacks."""

    vllm_config: Any

    def load_model(self, *given: Any, **named: Any) -> None:
        CpuCommunicator.all_gatherv = all_gatherv
        CpuCommunicator.reduce_scatterv = reduce_scatterv
        if self.vllm_config.parallel_config.enable_expert_parallel:
            torch.ops._C.cpu_fused_moe = with_own_experts(torch.ops._C.cpu_fused_moe)
        super().load_model(*given, **named)  # type: ignore[misc]


class TakenFromTheSecond(VllmEngine):
    """From the second build on, a step of the second replica finds less memory than the measured one did."""

    def stress(self, shape: StressShape) -> None:
        second = self._worker.vllm_config.parallel_config.data_parallel_index == 1
        taken = torch.empty(TAKEN_BYTES if second and self.builds > 1 else 0, dtype=torch.uint8)
        super().stress(shape)
        del taken


class Stock(Supplied, CPUWorker):
    """vLLM's own worker."""


class Worker(Supplied, brim.vllm.worker.worker_class()):  # type: ignore[misc]
    """Brim's."""


class TakenFrom(Worker):
    """Brim's, on devices of which another process takes memory between the measurement and the validation."""

    def determine_available_memory(self) -> int:
        brim.vllm.worker.VllmEngine = TakenFromTheSecond  # type: ignore[misc]
        return int(super().determine_available_memory())
