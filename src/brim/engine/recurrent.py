"""Recurrent mixers on a packed row: each request's tokens run on that request's own state.

In goes the row `[1, T, hidden]` that the model hands to a mixer, and the layout of the step: `decodes` tokens, one for
each generating request, then chunks of prompts. The decode tokens run as one batch on states gathered by slot, each
chunk as a sequence that continues its slot's state. The mixers' own `transformers` code computes all of it; it only
sees another batch and another cache. Out comes the row in its order, and the states in their slots.

Knows nothing of attention, of scheduling, or of what a token means.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.cache_utils import Cache, LinearAttentionLayer

from brim.engine.recurrent_states import (
    RecurrentStates,
    StateKind,
    StateShape,
    cache_argument,
    discover_states,
    layer_of,
    recurrent_mixers,
    state_updates,
)
from brim.engine.step import ChunkPlace, PackedLayout

__all__ = [
    "PackedCache",
    "PackedMixers",
    "RecurrentStates",
    "StateShape",
    "discover_states",
]

PIECE_TOKENS = 256
PIECE_ROWS = 64
SCAN_TOKENS = 64  # a Mamba-2 scan works in chunks of at most these: what it holds for a token grows with its chunk
LEAN_FACTOR = 4  # a delta rule, or a scan by matrix products, holds several times less for a token
LEAN_SCANS_SINCE = (5, 22)  # transformers before this multiplied the chunks of a Mamba-2 scan out

_States = Mapping[StateKind, Tensor]  # of one layer: some rows of each state
_Run = Callable[[Tensor, _States, bool], Tensor]  # hidden states, their sequences' states, whether there is a past


class PackedCache(Cache):
    """What the model gets as `past_key_values`: attention sees the keys and values of this step alone.

    The engine's attention function stores and reads the paged past, and the wrapped mixers bring their own states.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states


@dataclass(frozen=True, slots=True)
class _Pieces:
    """How a module's transient memory is bounded: it runs a chunk in pieces, each continuing from the one before."""

    tokens: int  # of a piece: a multiple of the chunks the module works in itself
    continues: bool = True  # False: several tokens always start from nothing (Mamba-1), so a past goes token by token

    def of(self, chunk: ChunkPlace) -> Iterator[tuple[int, int]]:
        """Start and end of each piece, counted from the chunk's first token."""
        start = 0
        while start < chunk.length:
            has_past = chunk.context + start > 0
            size = self.tokens if self.continues or not has_past else 1
            left = chunk.length - start
            if self.continues and left == size + 1:
                size = left  # one token left over would run in the form for generation, which clamps no time step
            yield start, start + min(size, left)
            start += min(size, left)


@dataclass(frozen=True, slots=True)
class _Mixer:
    """A wrapped module. Its references are weak, so that model, wrapper and states form no cycle."""

    module: weakref.ref[nn.Module]
    forward: Callable[[], Callable[..., Tensor] | None]
    hooked_forward: Callable[..., Tensor] | None  # set when another library had replaced `forward` before
    chunk_size: int | None
    layer: int
    cache_argument: str
    pieces: _Pieces


class PackedMixers:
    """The recurrent mixers of a model, taught to read packed rows; `undo` gives the model back as it was.

    Set `layout` before each step. Without one the mixers do what `transformers` wrote. `states` may be exchanged
    between steps (not under a captured graph, which keeps the addresses of the old ones).
    """

    def __init__(
        self,
        model: nn.Module,
        states: RecurrentStates,
        piece_tokens: int = PIECE_TOKENS,
        piece_rows: int = PIECE_ROWS,
    ) -> None:
        """Transient memory is bounded by running at most `piece_tokens` of a chunk and `piece_rows` decodes at once."""
        self.layout: PackedLayout | None = None
        self.states = states
        self._piece_rows = piece_rows
        self._mixers = [self._wrap(module, piece_tokens) for module in recurrent_mixers(model)]

    def __len__(self) -> int:
        return len(self._mixers)

    def undo(self) -> None:
        """Put every module back as it was found."""
        while self._mixers:
            mixer = self._mixers.pop()
            module: Any = mixer.module()
            if module is None:
                continue
            del module.forward
            if mixer.hooked_forward is not None:
                module.forward = mixer.hooked_forward
            if mixer.chunk_size is not None:
                module.chunk_size = mixer.chunk_size

    def _wrap(self, module: nn.Module, piece_tokens: int) -> _Mixer:
        own_chunk = getattr(module, "chunk_size", None)
        hooked = vars(module).get("forward")
        mixer = _Mixer(
            module=weakref.ref(module),
            forward=weakref.WeakMethod(module.forward) if hooked is None else lambda: hooked,
            hooked_forward=hooked,
            chunk_size=own_chunk,
            layer=layer_of(module),
            cache_argument=cache_argument(module),
            pieces=_pieces_for(module, piece_tokens),
        )
        if own_chunk is not None:
            module.chunk_size = min(own_chunk, SCAN_TOKENS)
        module.forward = partial(self._forward, mixer)
        return mixer

    def _forward(self, mixer: _Mixer, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        forward = mixer.forward()
        assert forward is not None, "a mixer runs while its module lives"
        if self.layout is None:
            return forward(hidden_states, *args, **kwargs)
        # What else the model passes (masks, packing hints) describes the row, not the sequences it is made of.
        return self._packed(partial(_run, forward, mixer), mixer, self.layout, hidden_states)

    @torch.no_grad()
    def _packed(self, run: _Run, mixer: _Mixer, layout: PackedLayout, hidden_states: Tensor) -> Tensor:
        assert hidden_states.shape[:2] == (1, layout.decodes + sum(chunk.length for chunk in layout.chunks))
        states = self.states.of_layer(mixer.layer)
        output = torch.empty_like(hidden_states)
        self._decode(run, states, layout, hidden_states, output)
        for chunk in layout.chunks:
            rows = {kind: tensor[chunk.slot : chunk.slot + 1] for kind, tensor in states.items()}
            for start, stop in mixer.pieces.of(chunk):
                place = slice(chunk.start + start, chunk.start + stop)
                output[:, place] = run(hidden_states[:, place], rows, chunk.context + start > 0)
        return output

    def _decode(self, run: _Run, states: _States, layout: PackedLayout, hidden_states: Tensor, output: Tensor) -> None:
        """The decode tokens, as batches of one-token sequences. Static shapes and no host sync: graphs capture it."""
        for start in range(0, layout.decodes, self._piece_rows):
            place = slice(start, min(start + self._piece_rows, layout.decodes))
            slots = layout.decode_slots[place]
            rows = {kind: tensor.index_select(0, slots) for kind, tensor in states.items()}
            output[0, place] = run(hidden_states[0, place, None], rows, True)[:, 0]
            for kind, tensor in states.items():
                tensor.index_copy_(0, slots, rows[kind])


def _run(forward: Callable[..., Tensor], mixer: _Mixer, hidden_states: Tensor, rows: _States, goes_on: bool) -> Tensor:
    """The module's own forward on a batch of sequences whose states are `rows`, which it updates in place."""
    cache = _view(mixer.layer, rows, goes_on)
    return forward(hidden_states=hidden_states, attention_mask=None, **{mixer.cache_argument: cache})


def _view(layer: int, rows: _States, goes_on: bool) -> Cache:
    """A cache of `transformers` over tensors of ours; it copies into them, in both its prefill and its decode."""
    view: Any = LinearAttentionLayer()
    view.conv_states[0] = rows["conv"]
    view.conv_kernel_size[0] = rows["conv"].shape[-1]
    view.is_conv_states_initialized[0] = True
    if "recurrent" in rows:
        view.recurrent_states[0] = rows["recurrent"]
        view.is_recurrent_states_initialized[0] = True
    view.has_previous_state[0] = goes_on
    return Cache(layers=[view] * (layer + 1))  # whichever layer the module asks about, it is this one


def _pieces_for(module: nn.Module, piece_tokens: int) -> _Pieces:
    if "update_recurrent_state" not in state_updates(module):
        return _Pieces(tokens=sys.maxsize)  # a convolution holds little for a token
    is_scan = hasattr(module, "ssm_state_size")
    own_chunk = getattr(module, "chunk_size", None)
    is_mamba_1 = is_scan and own_chunk is None
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    is_lean = not is_scan or (not is_mamba_1 and version >= LEAN_SCANS_SINCE)
    step = min(own_chunk or SCAN_TOKENS, SCAN_TOKENS)
    tokens = piece_tokens * LEAN_FACTOR if is_lean else piece_tokens
    return _Pieces(max(tokens // step, 1) * step, continues=not is_mamba_1)
