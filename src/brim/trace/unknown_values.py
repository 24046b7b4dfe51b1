"""Data-dependent operations on the meta device, which has no values.

Masks are taken as all true and batches as not packed, as engines run them, unless a mask was copied from a tensor that
has values: whether all of that is true is known (`KnownMasks`). A boolean mask selects every element, which is the most
it can select.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SCALAR, TRUTH = 1, True  # results of `.item()` and `if tensor:`


class KnownMasks:
    """Masks that the model's code copied to the meta device, and the answers to `mask.all()`."""

    def __init__(self) -> None:
        from torch.utils.weak import WeakTensorKeyDictionary

        self._copied: Any = WeakTensorKeyDictionary()  # a meta tensor -> the one with values
        self._answers: Any = WeakTensorKeyDictionary()  # the result of `all` on one of them -> what it is

    def copied(self, source: torch.Tensor, copy: torch.Tensor) -> None:
        self._copied[copy] = source

    def all_of(self, mask: torch.Tensor, result: torch.Tensor) -> None:
        source = self._copied.get(mask)
        if source is not None:
            self._answers[result] = bool(source.all())

    def truth(self, tensor: torch.Tensor) -> bool | None:
        """The value of a result of `all`; None where nobody knows it."""
        found: bool | None = self._answers.get(tensor)
        return found


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
