"""What the recurrent mixers of a hybrid model keep for a request, and the tensors that keep it for every slot.

In: a `transformers` model (gated delta nets, Mamba, short convolutions). Out: the shapes of its states, found by
running each mixer separately on two tokens, and `RecurrentStates`, which holds a row of each state for each slot.
Attention, experts and embeddings are never run. Knows nothing of steps, of requests beyond their slots, or of attention
layers.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from brim.engine.recurrent.scans.stand_ins import own_scans
from brim.errors import UnsupportedModel

StateKind = Literal["conv", "recurrent"]

PROBE_TOKENS = 2  # a model may take a single token for a decode step
PROBE_CHUNK = 16  # of a scan on these tokens: the least that matrix-product kernels support
UPDATES = frozenset({"update_conv_state", "update_recurrent_state"})  # what the code of a mixer calls on its cache
CACHE_ARGUMENTS = ("cache_params", "past_key_values")


@dataclass(frozen=True, slots=True)
class StateShape:
    """One state of one layer, for one request."""

    layer: int
    kind: StateKind
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def slot_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class RecurrentStates:
    """The states of all slots, zero at first, plus a scratch slot that padding rows may write to.

    Behind them are rows for snapshots, which only `copy` reads and writes.
    """

    def __init__(
        self, shapes: Sequence[StateShape], slots: int, device: torch.device | str, snapshots: int = 0
    ) -> None:
        self.slots = slots
        self.rows = slots + 1 + snapshots
        self.bytes_per_slot = sum(shape.slot_bytes for shape in shapes)
        self._layers: dict[int, dict[StateKind, Tensor]] = {}
        with torch.inference_mode(False):  # tensors created in inference mode cannot be updated outside it
            for shape in shapes:
                rows = torch.zeros(self.rows, *shape.shape, dtype=shape.dtype, device=device)
                self._layers.setdefault(shape.layer, {})[shape.kind] = rows

    @property
    def scratch_slot(self) -> int:
        return self.slots

    @property
    def held_bytes(self) -> int:
        return self.bytes_per_slot * self.rows

    def of_layer(self, layer: int) -> Mapping[StateKind, Tensor]:
        """The states of one layer, each `[rows, *shape]`."""
        return self._layers[layer]

    def of_slot(self, slot: int) -> Iterator[Tensor]:
        """Every state of one slot, in the order of the layers."""
        for states in self._layers.values():
            for rows in states.values():
                yield rows[slot]

    def clear(self, slots: Sequence[int]) -> None:
        """Forget what was computed in these slots: the next request starts from zeros."""
        if not slots or not self._layers:
            return
        tensors = [rows for states in self._layers.values() for rows in states.values()]
        index = torch.tensor(slots, dtype=torch.int64, device=tensors[0].device)
        for rows in tensors:
            rows.index_fill_(0, index, 0)

    def copy(self, source_slot: int, target_slot: int) -> None:
        """Copy the states of `source_slot` to `target_slot`."""
        for states in self._layers.values():
            for rows in states.values():
                rows[target_slot].copy_(rows[source_slot])


def discover_states(model: nn.Module) -> tuple[StateShape, ...]:
    """The states of every mixer of the model, in the order of its layers; none for a model without recurrent layers."""
    mixers = recurrent_mixers(model)
    if not mixers:
        return ()
    config: Any = model.config
    cache: Any = DynamicCache(config=config)
    hidden_size = config.get_text_config(decoder=True).hidden_size
    with torch.no_grad(), own_scans(class_forward(mixer) for mixer in mixers):
        for mixer in mixers:
            device = next(mixer.parameters()).device
            hidden = torch.zeros(1, PROBE_TOKENS, hidden_size, dtype=_dtype_of(model), device=device)
            with scan_chunk(mixer, PROBE_CHUNK):
                mixer(hidden_states=hidden, attention_mask=None, **{cache_argument(mixer): cache})
    return tuple(shape for mixer in mixers for shape in _shapes_in(cache, layer_of(mixer)))


def recurrent_mixers(model: nn.Module) -> tuple[nn.Module, ...]:
    """The modules whose own code keeps a conv or recurrent state in the cache, in the order of the layers."""
    mixers = [module for module in model.modules() if state_updates(module)]
    for mixer in mixers:
        cache_argument(mixer)  # raises for what is not called as a mixer
    if len({layer_of(mixer) for mixer in mixers}) < len(mixers):
        raise UnsupportedModel(f"{type(model).__name__} has several recurrent mixers in a layer; Brim supports one")
    return tuple(sorted(mixers, key=layer_of))


def state_updates(module: nn.Module) -> frozenset[str]:
    """Which states the module's own code updates in its cache."""
    code = getattr(class_forward(module), "__code__", None)
    return UPDATES.intersection(() if code is None else code.co_names)


def layer_of(mixer: nn.Module) -> int:
    layer = mixer.layer_idx
    assert isinstance(layer, int)
    return layer


def cache_argument(mixer: nn.Module) -> str:
    """The name under which the mixer's `forward` takes its cache."""
    names = inspect.signature(class_forward(mixer)).parameters
    found = next((name for name in CACHE_ARGUMENTS if name in names), None)
    if found is None or not {"hidden_states", "attention_mask"} <= names.keys():
        raise UnsupportedModel(
            f"{type(mixer).__name__} keeps a state outside a plain mixer: its forward takes ({', '.join(names)}) "
            f"where Brim expects hidden_states, a cache and attention_mask; run this model with transformers itself"
        )
    return found


@contextmanager
def scan_chunk(mixer: nn.Module, tokens: int) -> Iterator[None]:
    """Have a Mamba-2 scan work on chunks of at most `tokens`: it pads to a whole chunk."""
    own = getattr(mixer, "chunk_size", None)
    if own is not None:
        mixer.chunk_size = min(own, tokens)
    try:
        yield
    finally:
        if own is not None:
            mixer.chunk_size = own


def class_forward(module: nn.Module) -> Any:
    """The `forward` of a module's class, without later wrappers."""
    return inspect.unwrap(type(module).forward)


def _dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype of the hidden states: that of the embeddings, the first parameters of every model."""
    return next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())


def _shapes_in(cache: Any, layer: int) -> Iterator[StateShape]:
    states = cache.layers[layer]
    if states.number_of_states > 1:
        raise UnsupportedModel(f"layer {layer} keeps {states.number_of_states} recurrent states; Brim supports one")
    found: dict[StateKind, Tensor | None] = {"conv": states.conv_states[0], "recurrent": states.recurrent_states[0]}
    for kind, tensor in found.items():
        if tensor is not None:
            yield StateShape(layer, kind, tuple(tensor.shape[1:]), tensor.dtype)
