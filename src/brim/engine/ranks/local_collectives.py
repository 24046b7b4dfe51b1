"""Collectives replaced by local operations of the same memory, so that a rank can run a step without the others.

Inside `collectives_stood_in`, every collective of torch.distributed returns at once, with outputs of the usual size.
All ranks are assumed to hold what this one holds, so the values are wrong, but finite if its own are. A collective that
is captured in a CUDA graph is passed on: capturing records it without waiting.

Does not see: graphs that were captured before, collectives that do not go through torch's dispatcher, and what NCCL
takes for itself when it first connects two ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._C._distributed_c10d import FakeWork
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from brim.engine.ranks.collectives import Collective, noted
from brim.errors import UnsupportedModel

_NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"}  # of collectives
_THEMSELVES_COLLECTIVE = (DTensor, AsyncCollectiveTensor)
_LOCAL = {"_c10d_functional::_wrap_tensor_autograd"}  # of those, local operations


def collectives_stood_in(notes: list[Collective] | None = None) -> AbstractContextManager[Any]:
    """Replace the collectives of this thread; `notes` gets a record of each, in order."""
    return _StoodIn(notes)


class _StoodIn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces collectives; passes everything else on."""

    def __init__(self, notes: list[Collective] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._notes = notes

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # compiled code stays compiled, and its collectives are still seen

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, _THEMSELVES_COLLECTIVE) for kind in types):
            return NotImplemented  # their own code runs first, and its collectives are seen
        kwargs = kwargs or {}
        if getattr(function, "namespace", "") not in _NAMESPACES:
            return function(*args, **kwargs)
        name = function._schema.name
        if name in _LOCAL or _captured():
            return function(*args, **kwargs)
        if name not in _STAND_INS:
            raise UnsupportedModel(
                f"tensor parallelism: the collective '{name}' has no local replacement, so a rank cannot test a step "
                "without the others; run this model on one device"
            )
        if self._notes is not None:
            self._notes += noted(name, args, kwargs)
        return _STAND_INS[name](*args, **kwargs)


def _captured() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


# -- collectives that work in place: what they return, and work that is done -----------------------------------------


def _in_place(tensors: Any, *_: Any, **__: Any) -> Any:
    return tensors, FakeWork().boxed()


def _gather_lists(outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], *_: Any, **__: Any) -> Any:
    for gathered, mine in zip(outputs, inputs, strict=True):
        for output in gathered:
            output.copy_(mine)
    return outputs, FakeWork().boxed()


def _gather_base(output: torch.Tensor, mine: torch.Tensor, *_: Any, **__: Any) -> Any:
    return _repeated(output, mine), FakeWork().boxed()


def _scatter_base(output: torch.Tensor, mine: torch.Tensor, *_: Any, **__: Any) -> Any:
    return output.copy_(mine.reshape(-1, *output.shape)[0]), FakeWork().boxed()


def _exchange_base(output: torch.Tensor, *_: Any, **__: Any) -> Any:
    output.zero_()
    return FakeWork().boxed()


# -- functional ones: a tensor of their own --------------------------------------------------------------------------


def _same(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


def _copied(mine: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return mine.clone(memory_format=torch.contiguous_format)


def _gather(mine: torch.Tensor, size: int, *_: Any, **__: Any) -> torch.Tensor:
    rows, *others = mine.shape
    return _repeated(mine.new_empty((size * rows, *others)), mine)


def _gather_out(mine: torch.Tensor, *_: Any, out: torch.Tensor, **__: Any) -> torch.Tensor:
    return _repeated(out, mine)


def _scatter(mine: torch.Tensor, operation: str, size: int, *_: Any, **__: Any) -> torch.Tensor:
    return mine[: mine.shape[0] // size].clone(memory_format=torch.contiguous_format)


def _exchange(mine: torch.Tensor, output_rows: Sequence[int], *_: Any, **__: Any) -> torch.Tensor:
    return mine.new_zeros((sum(output_rows), *mine.shape[1:]))


def _repeated(output: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    """This rank's tensor, once for every rank."""
    if mine.numel():
        output.view(-1, *mine.shape).copy_(mine)
    return output


_STAND_INS: dict[str, Callable[..., Any]] = {
    "c10d::allreduce_": _in_place,
    "c10d::broadcast_": _in_place,
    "c10d::allgather_": _gather_lists,
    "c10d::_allgather_base_": _gather_base,
    "c10d::_reduce_scatter_base_": _scatter_base,
    "c10d::alltoall_base_": _exchange_base,
    "_c10d_functional::all_reduce": _copied,
    "_c10d_functional::all_reduce_": _same,
    "_c10d_functional::broadcast": _copied,
    "_c10d_functional::broadcast_": _same,
    "_c10d_functional::all_gather_into_tensor": _gather,
    "_c10d_functional::all_gather_into_tensor_out": _gather_out,
    "_c10d_functional::reduce_scatter_tensor": _scatter,
    "_c10d_functional::all_to_all_single": _exchange,
    "_c10d_functional::wait_tensor": _same,
}
