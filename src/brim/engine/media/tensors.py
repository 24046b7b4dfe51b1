"""Tensors of a processor's output, taken to the host and checked: a wrong one is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from brim.engine.media.parts import MediaKind
from brim.errors import InvalidRequest, first_line


def host_tensor(
    inputs: Mapping[str, Any], name: str, shape: tuple[int | None, ...], kind: MediaKind, *, integer: bool = False
) -> torch.Tensor:
    """One of the processor's tensors of this kind of media, of this shape (None: any size)."""
    if inputs.get(name) is None:
        raise InvalidRequest(f"{kind}: the processor's output has no {name}")
    try:
        tensor = torch.as_tensor(inputs[name]).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"{kind}: {name} is not a tensor: {first_line(error)}") from error
    sizes = tuple(tensor.shape)
    fits = len(shape) == len(sizes) and all(want in (None, have) for want, have in zip(shape, sizes, strict=True))
    if not fits or tensor.shape[0] == 0:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise InvalidRequest(f"{kind}: {name} has the shape {sizes}; it must be ({wanted})")
    if integer == (tensor.is_floating_point() or tensor.is_complex()):
        raise InvalidRequest(f"{kind}: {name} holds {tensor.dtype}; it must hold {'integers' if integer else 'floats'}")
    return tensor.long() if integer else tensor
