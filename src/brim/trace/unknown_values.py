"""Questions that only values can answer, where there are none.

A mask is full and a batch is not packed: the plain case that engines run. A boolean mask selects every place, which
is the most it can select.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SCALAR, TRUTH = 1, True  # what `.item()` and `if tensor:` are told


def every_place(mask: torch.Tensor) -> torch.Tensor:
    """The result of `nonzero` where all of a mask is set."""
    import torch

    return torch.empty((mask.numel(), max(1, mask.dim())), dtype=torch.long, device="meta")


def places(index: torch.Tensor | None) -> list[torch.Tensor | None]:
    """An index as integers: a boolean mask becomes the places it selects."""
    import torch

    if index is None or index.dtype != torch.bool:
        return [index]
    selected = every_place(index) if index.is_meta else index.nonzero().to("meta")
    return list(selected.unbind(1))


def to_meta(leaf: Any) -> Any:
    """A tensor with values, put beside tensors without."""
    import torch

    return leaf.to("meta") if isinstance(leaf, torch.Tensor) and not leaf.is_meta else leaf
