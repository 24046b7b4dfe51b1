"""Data-dependent operations on the meta device, which has no values.

Masks are taken as all true and batches as not packed, as engines run them. A boolean mask selects every element, which
is the most it can select.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SCALAR, TRUTH = 1, True  # results of `.item()` and `if tensor:`


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
    """A tensor with values, as a meta tensor."""
    import torch

    return leaf.to("meta") if isinstance(leaf, torch.Tensor) and not leaf.is_meta else leaf
