"""Attention backends by name, and which one a device gets by default.

Add another backend with `register_backend("name", make)`, and select it with `EngineSettings(attention="name")`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brim.engine.attention.protocol import AttentionBackend
from brim.engine.kv.geometry import LayerGeometry
from brim.errors import InvalidRequest

if TYPE_CHECKING:
    import torch

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class BackendSizes:
    """The sizes a backend is created for."""

    layers: tuple[LayerGeometry, ...]
    max_decodes: int  # rows of decodes in a step
    max_length: int
    device: torch.device

    @property
    def decode_batches(self) -> range:
        """Every possible number of decodes in a step; captured steps pad to one of them."""
        return range(1, self.max_decodes + 1)


MakeBackend = Callable[[BackendSizes], AttentionBackend]


def _triton(sizes: BackendSizes) -> AttentionBackend:
    if sizes.device.type != "cuda":
        raise InvalidRequest(f"attention 'triton' runs on CUDA devices, not on {sizes.device.type}; use auto")
    import torch

    from brim.engine.attention.triton_backend import TritonAttention

    multiprocessors = torch.cuda.get_device_properties(sizes.device).multi_processor_count
    return TritonAttention(sizes.layers, sizes.decode_batches, sizes.max_length, sizes.device, multiprocessors)


def _reference(sizes: BackendSizes) -> AttentionBackend:
    from brim.engine.attention.reference import ReferenceAttention

    return ReferenceAttention(sizes.max_length)


def _meta(sizes: BackendSizes) -> AttentionBackend:
    from brim.engine.attention.meta import MetaAttention

    return MetaAttention()


_BACKENDS: dict[str, MakeBackend] = {"triton": _triton, "reference": _reference, "meta": _meta}
_BY_DEVICE = {"cuda": "triton", "meta": "meta"}


def register_backend(name: str, make: MakeBackend) -> None:
    """Register a backend under a name."""
    if name == AUTO or name in _BACKENDS:
        raise InvalidRequest(f"attention '{name}' is taken; choose another name")
    _BACKENDS[name] = make


def check_backend(name: str) -> None:
    """Refuse a name that is not registered."""
    if name != AUTO and name not in _BACKENDS:
        raise InvalidRequest(f"attention '{name}' is not known; choose {', '.join((AUTO, *_BACKENDS))}")


def make_backend(name: str, sizes: BackendSizes) -> AttentionBackend:
    """The backend of this name; created again with every pool, since it holds memory too."""
    check_backend(name)
    # The meta device stands for the GPU that is traced, whichever backend runs there.
    chosen = "meta" if sizes.device.type == "meta" else name
    return _BACKENDS[_BY_DEVICE.get(sizes.device.type, "reference") if chosen == AUTO else chosen](sizes)
