"""Rotary embeddings whose frequencies depend on the sequence length, fixed once for all requests of an engine.

LongRoPE (Phi-3, Phi-4-mini) has factors for short and for long sequences, and dynamic NTK scales its frequencies with
the length. `transformers` decides by the largest position of a forward. In a batch that is the longest request's: it
would change the results of the others, and the keys they publish for prefix caching. It also needs a synchronisation
with the device, which a CUDA graph cannot contain.

In: a model, and the tokens of the longest request that its engine takes. The frequencies become those of that length,
for every request. Does not touch other kinds of scaling: those do not depend on the length.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_UNCHANGING = "default"  # under this name transformers leaves the frequencies of a module as they are


class SettledRotary:
    """The rotary embeddings of a model, fixed for one length; `undo` restores the model."""

    def __init__(self, model: nn.Module, max_length: int) -> None:
        self._before: list[tuple[nn.Module, dict[str, Any]]] = []
        for module in model.modules():
            settled = _settled(module, max_length)
            if settled:
                own = {**vars(module), **module._buffers}
                self._before.append((module, {name: own.get(name) for name in settled}))
                _write(module, settled)

    def __len__(self) -> int:
        return len(self._before)

    def undo(self) -> None:
        """Restore every module."""
        while self._before:
            _write(*self._before.pop())


def _write(module: nn.Module, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value is None:
            del module.__dict__[name]  # the class's own again
        else:
            setattr(module, name, value)


def _settled(module: Any, max_length: int) -> dict[str, Any]:
    """The attributes to set on a module; none if it does not depend on the sequence length."""
    kinds = getattr(module, "rope_type", None)
    by_layer: dict[Any, Any] = kinds if isinstance(kinds, dict) else {None: kinds}  # some have one for each layer type
    following = {layer: kind for layer, kind in by_layer.items() if _follows_length(kind)}
    if not following:
        return {}
    unchanging = {**by_layer, **dict.fromkeys(following, _UNCHANGING)}
    values: dict[str, Any] = {"rope_type": unchanging if isinstance(kinds, dict) else _UNCHANGING}
    for layer, kind in following.items():
        prefix = "" if layer is None else f"{layer}_"
        values[f"{prefix}inv_freq"], values[f"{prefix}attention_scaling"] = _of_length(module, kind, layer, max_length)
    if None in following and _asks_for_largest(module):
        values["forward"] = partial(_rotated, values["inv_freq"], values["attention_scaling"])
    return values


def _follows_length(kind: Any) -> bool:
    return isinstance(kind, str) and (kind == "longrope" or "dynamic" in kind)


def _of_length(module: Any, kind: str, layer: str | None, max_length: int) -> tuple[Tensor, float]:
    """Frequencies, and the scale of cosine and sine, for this length."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    device = getattr(module, "inv_freq" if layer is None else f"{layer}_inv_freq").device
    config = module.config
    inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, device, seq_len=max_length, layer_type=layer)
    if _asks_for_largest(module):  # such a class has a scale for each set of factors, too
        parameters = config.rope_parameters
        is_long = max_length > parameters["original_max_position_embeddings"]
        scale = parameters["long_mscale" if is_long else "short_mscale"]
    return inv_freq, scale


def _asks_for_largest(module: nn.Module) -> bool:
    """Whether the class's own code, inside transformers' wrappers, uses the largest position."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "max" in code.co_names


def _rotated(inv_freq: Tensor, scale: float, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces a `forward` that uses the largest position (PhiMoE): cosine and sine of each position."""
    angles = position_ids[..., None].float() * inv_freq.to(x.device)
    both = torch.cat((angles, angles), dim=-1)
    return (both.cos() * scale).to(x.dtype), (both.sin() * scale).to(x.dtype)
