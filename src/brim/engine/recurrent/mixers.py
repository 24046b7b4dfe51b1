"""Recurrent mixers on a packed row: each request's tokens run on that request's own state.

In: the row `[1, T, hidden]` that the model passes to a mixer, and the layout of the step: `decodes` tokens, one for
each decode, then chunks of prompts. The decode tokens run as one batch on states gathered by slot, and so do chunks of
equal length; a chunk of a length of its own updates its slot's state in place. The mixers' own `transformers` code
computes all of it, on another batch and another cache, and with Brim's scans where it would fall back to a slow one.
Out: the row in its order, and the states in their slots.

Knows nothing of attention, of scheduling, or of what a token means.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, LinearAttentionLayer

from brim.engine.device.layout import PackedLayout
from brim.engine.device.staging import Staging
from brim.engine.recurrent.batches import ChunkBatch, Pieces, batches
from brim.engine.recurrent.scans.stand_ins import kernels_in, own_scans
from brim.engine.recurrent.states import (
    RecurrentStates,
    StateKind,
    StateShape,
    cache_argument,
    class_forward,
    discover_states,
    layer_of,
    recurrent_mixers,
    state_updates,
)

__all__ = [
    "PackedCache",
    "PackedMixers",
    "RecurrentStates",
    "StateShape",
    "discover_states",
]

# Tokens that run at once, by the kernel that a mixer's code calls: their memory per token differs that much.
PIECE_TOKENS = {"mamba_chunk_scan_combined": 2048, "chunk_gated_delta_rule": 2048, "chunk_kda": 1024}
OTHER_PIECE_TOKENS = 256  # Mamba-1: a state for every token
PIECE_ROWS = 64
CHUNK_ROWS = PIECE_ROWS // 2  # a chunk's state is held twice: the old one and the new one

_States = Mapping[StateKind, Tensor]  # of one layer: some rows of each state
_Run = Callable[[Tensor, _States, bool], Tensor]  # hidden states, their sequences' states, whether there is a past


class PackedCache(Cache):
    """What the model gets as `past_key_values`: only the keys and values of this step.

    The engine's attention function reads and writes the paged cache, and the wrapped mixers use their own states.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states


@dataclass(frozen=True, slots=True)
class _Mixer:
    """A wrapped module. Its references are weak, so that model, wrapper and states form no cycle."""

    module: weakref.ref[nn.Module]
    forward: Callable[[], Callable[..., Tensor] | None]
    hooked_forward: Callable[..., Tensor] | None  # set when another library had replaced `forward` before
    layer: int
    cache_argument: str
    pieces: Pieces


@dataclass(frozen=True, slots=True, eq=False)
class _PlacedBatch:
    """A batch of several chunks, with what the device needs to gather it and to put it back."""

    batch: ChunkBatch
    slots: Tensor  # int64 [chunks]
    places: Tensor  # int64 [chunks * length]


class PackedMixers:
    """The recurrent mixers of a model, changed to read packed rows; `undo` restores the model.

    Set `layout` before each step. Without one the mixers take whole batches, as usual. `states` may be replaced
    between steps (not with a captured graph, which keeps the addresses of the old ones).
    """

    def __init__(
        self,
        model: nn.Module,
        states: RecurrentStates,
        piece_tokens: int | None = None,
        piece_rows: int = PIECE_ROWS,
    ) -> None:
        """Transient memory is bounded: at most `piece_tokens` of chunks (by kind) and `piece_rows` states at once."""
        self.states = states
        self._piece_rows = piece_rows
        self._chunk_rows = min(piece_rows, CHUNK_ROWS)
        self._staging: Staging | None = None
        self._layout: PackedLayout | None = None
        self._batches: dict[Pieces, tuple[ChunkBatch | _PlacedBatch, ...]] = {}  # of this layout
        modules = recurrent_mixers(model)
        scans = ExitStack()
        scans.enter_context(own_scans(class_forward(module) for module in modules))
        self._give_scans_back = weakref.finalize(self, scans.close)
        self._mixers = [self._wrap(module, piece_tokens) for module in modules]

    @property
    def layout(self) -> PackedLayout | None:
        return self._layout

    @layout.setter
    def layout(self, layout: PackedLayout | None) -> None:
        self._layout = layout
        self._batches = {}

    def __len__(self) -> int:
        return len(self._mixers)

    def undo(self) -> None:
        """Restore every module."""
        self._give_scans_back()
        while self._mixers:
            mixer = self._mixers.pop()
            module: Any = mixer.module()
            if module is None:
                continue
            del module.forward
            if mixer.hooked_forward is not None:
                module.forward = mixer.hooked_forward

    def _wrap(self, module: nn.Module, piece_tokens: int | None) -> _Mixer:
        hooked = vars(module).get("forward")
        mixer = _Mixer(
            module=weakref.ref(module),
            forward=weakref.WeakMethod(module.forward) if hooked is None else lambda: hooked,
            hooked_forward=hooked,
            layer=layer_of(module),
            cache_argument=cache_argument(module),
            pieces=_pieces_for(module, piece_tokens),
        )
        module.forward = partial(self._forward, mixer)
        return mixer

    def _forward(self, mixer: _Mixer, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        forward = mixer.forward()
        assert forward is not None, "a mixer runs while its module lives"
        if self.layout is None:
            return forward(hidden_states, *args, **kwargs)
        # Other arguments (masks, packing hints) describe the row, not the sequences in it.
        return self._packed(partial(_run, forward, mixer), mixer, self.layout, hidden_states)

    @torch.no_grad()
    def _packed(self, run: _Run, mixer: _Mixer, layout: PackedLayout, hidden_states: Tensor) -> Tensor:
        assert hidden_states.shape[:2] == (1, layout.decodes + sum(chunk.length for chunk in layout.chunks))
        states = self.states.of_layer(mixer.layer)
        output = torch.empty_like(hidden_states)
        self._decode(run, states, layout, hidden_states, output)
        for batch in self._placed(layout, mixer.pieces, hidden_states.device):
            if isinstance(batch, ChunkBatch):
                _one_chunk(run, states, mixer.pieces, batch, hidden_states, output)
            else:
                _several_chunks(run, states, mixer.pieces, batch, hidden_states, output)
        return output

    def _placed(
        self, layout: PackedLayout, pieces: Pieces, device: torch.device
    ) -> Sequence[ChunkBatch | _PlacedBatch]:
        """The chunks of this step in batches, sent to the device once for all layers."""
        if pieces not in self._batches:
            self._staging = self._staging or Staging(device)
            found = list(batches(layout.chunks, pieces, self._chunk_rows))
            self._batches[pieces] = tuple(_placed(found, self._staging))
        return self._batches[pieces]

    def _decode(self, run: _Run, states: _States, layout: PackedLayout, hidden_states: Tensor, output: Tensor) -> None:
        """The decode tokens, as batches of one-token sequences. Static shapes and no host sync: graphs capture it."""
        for start in range(0, layout.decodes, self._piece_rows):
            place = slice(start, min(start + self._piece_rows, layout.decodes))
            with _gathered(states, layout.decode_slots[place]) as rows:
                output[0, place] = run(hidden_states[0, place, None], rows, True)[:, 0]


def _one_chunk(
    run: _Run, states: _States, pieces: Pieces, batch: ChunkBatch, hidden_states: Tensor, output: Tensor
) -> None:
    """A chunk on the state in its slot, updated in place."""
    (chunk,) = batch.chunks
    place = slice(chunk.start, chunk.start + chunk.length)
    rows = {kind: tensor[chunk.slot : chunk.slot + 1] for kind, tensor in states.items()}
    _run_pieces(run, rows, pieces, batch, hidden_states[:, place], output[:, place])


def _several_chunks(
    run: _Run, states: _States, pieces: Pieces, placed: _PlacedBatch, hidden_states: Tensor, output: Tensor
) -> None:
    """Chunks as the rows of one batch, on states gathered by slot."""
    batch = placed.batch
    inputs = hidden_states[0].index_select(0, placed.places).view(len(batch.chunks), batch.length, -1)
    outputs = torch.empty_like(inputs)
    with _gathered(states, placed.slots) as rows:
        _run_pieces(run, rows, pieces, batch, inputs, outputs)
    output[0].index_copy_(0, placed.places, outputs.flatten(0, 1))


def _run_pieces(run: _Run, rows: _States, pieces: Pieces, batch: ChunkBatch, inputs: Tensor, outputs: Tensor) -> None:
    for start, stop in pieces.of(batch.length, batch.has_past):
        outputs[:, start:stop] = run(inputs[:, start:stop], rows, batch.has_past or start > 0)


@contextmanager
def _gathered(states: _States, slots: Tensor) -> Iterator[_States]:
    """The states of these slots, gathered as rows and written back at the end."""
    rows = {kind: tensor.index_select(0, slots) for kind, tensor in states.items()}
    yield rows
    for kind, tensor in states.items():
        tensor.index_copy_(0, slots, rows.pop(kind))


def _run(forward: Callable[..., Tensor], mixer: _Mixer, hidden_states: Tensor, rows: _States, goes_on: bool) -> Tensor:
    """The module's own forward on a batch of sequences whose states are `rows`, which it updates in place."""
    cache = _view(mixer.layer, rows, goes_on)
    return forward(hidden_states=hidden_states, attention_mask=None, **{mixer.cache_argument: cache})


def _view(layer: int, rows: _States, goes_on: bool) -> Cache:
    """A `transformers` cache over our tensors; it copies into them, in prefill and decode."""
    view: Any = LinearAttentionLayer()
    view.conv_states[0] = rows["conv"]
    view.conv_kernel_size[0] = rows["conv"].shape[-1]
    view.is_conv_states_initialized[0] = True
    if "recurrent" in rows:
        view.recurrent_states[0] = rows["recurrent"]
        view.is_recurrent_states_initialized[0] = True
    view.has_previous_state[0] = goes_on
    return Cache(layers=[view] * (layer + 1))  # whichever layer the module asks about, it is this one


def _placed(found: Sequence[ChunkBatch], staging: Staging) -> Iterator[ChunkBatch | _PlacedBatch]:
    """The batches, those of several chunks with their slots and places on the device: one copy for all of them."""
    several = [batch for batch in found if len(batch.chunks) > 1]
    arrays = [np.array(numbers, dtype=np.int64) for batch in several for numbers in (batch.slots, batch.places)]
    sent = iter(staging.send(arrays) if arrays else ())
    for batch in found:
        yield batch if len(batch.chunks) == 1 else _PlacedBatch(batch, next(sent), next(sent))


def fullest_chunk(model: nn.Module, requests: int, step_tokens: int) -> int | None:
    """Tokens of each chunk in the batch that needs most memory; None for a model without recurrent layers."""
    pieces = [_pieces_for(module, None).tokens for module in recurrent_mixers(model)]
    return max(min(max(pieces), step_tokens) // min(requests, CHUNK_ROWS), 1) if pieces else None


def _pieces_for(module: nn.Module, piece_tokens: int | None) -> Pieces:
    if "update_recurrent_state" not in state_updates(module):
        return Pieces(tokens=sys.maxsize)  # a convolution holds little for a token
    kernels = kernels_in(class_forward(module).__globals__)
    by_kind = max((PIECE_TOKENS[name] for name in kernels & PIECE_TOKENS.keys()), default=OTHER_PIECE_TOKENS)
    is_mamba_1 = hasattr(module, "ssm_state_size") and not hasattr(module, "chunk_size")
    return Pieces(piece_tokens or by_kind, continues=not is_mamba_1)
