"""What still holds memory: descriptions of the largest live tensors of a device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from brim.units import format_bytes

if TYPE_CHECKING:
    import torch


def largest_tensors(count: int, counts: Callable[[torch.Tensor], bool]) -> tuple[str, ...]:
    """The largest storages that Python can still reach, each with its shape and what refers to it.

    Weights are left out: they are meant to stay.
    """
    import torch

    found: dict[int, torch.Tensor] = {}
    weights: set[int] = set()
    for tensor in live_tensors(counts):
        found.setdefault(tensor.untyped_storage()._cdata, tensor)
        if isinstance(tensor, torch.nn.Parameter):
            weights.add(tensor.untyped_storage()._cdata)
    others = (tensor for key, tensor in found.items() if key not in weights)
    largest = sorted(others, key=lambda tensor: -tensor.untyped_storage().nbytes())[:count]
    return tuple(
        f"{format_bytes(tensor.untyped_storage().nbytes())} of {tuple(tensor.shape)} {tensor.dtype}, held by "
        f"{_holder(tensor)}"
        for tensor in largest
    )


def live_tensors(counts: Callable[[torch.Tensor], bool]) -> Iterator[torch.Tensor]:
    """Those of the tensors that Python can still reach. Looks at every object there is: a tenth of a second or more."""
    import torch

    for thing in gc.get_objects():
        # Some lazy proxies raise when asked for their class by isinstance; a tensor's type is a plain one.
        if issubclass(type(thing), torch.Tensor) and not thing.is_meta and counts(thing):
            yield thing


def _holder(tensor: torch.Tensor) -> str:
    """The type of what refers to a tensor, two steps up where the first is only a container."""
    for referrer in gc.get_referrers(tensor):
        if isinstance(referrer, dict | list | tuple):
            owners = [type(owner).__name__ for owner in gc.get_referrers(referrer) if hasattr(owner, "__dict__")]
            if owners:
                return owners[0]
        elif hasattr(referrer, "__dict__") or hasattr(type(referrer), "__slots__"):
            return type(referrer).__name__
    return "a local variable"
