"""Scratch memory of torch's CUDA kernels, where it is as large as their inputs.

A trace sees the inputs and outputs of an operation. These rules were measured on an H200 with torch 2.11, with the
allocator's statistics; the kernels of other operations need next to no scratch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_FEW_ROWS = 128  # fewer rows than these are sorted each by itself
_SORTED_BY_ROW = 32  # bytes for an element of float32
_SORTED_TOGETHER = 20


def kernel_scratch(function: Any, args: tuple[Any, ...], result: Any) -> int:
    """Bytes that are freed at the end of the operation."""
    import torch

    aten = torch.ops.aten
    packet = getattr(function, "overloadpacket", None)
    if packet is aten.sort and args[0].dtype == torch.float32:
        return _sort_bytes(args[0])
    if packet is aten.logsumexp:
        return _bytes_of(args[0])  # exponentials
    if packet is aten.sum and args[0].dtype == torch.bool and isinstance(result, torch.Tensor):
        return int(args[0].numel()) * result.element_size()  # a copy in the type of the sum
    return 0


def _sort_bytes(keys: torch.Tensor) -> int:
    rows = keys.numel() // max(1, keys.shape[-1]) if keys.dim() else 1
    return keys.numel() * (_SORTED_BY_ROW if 1 < rows < _FEW_ROWS else _SORTED_TOGETHER)


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
