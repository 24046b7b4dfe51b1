"""`torch.compile` for a decoder's layers, one at a time: equal layers share one compiled function.

Attention is one opaque operator in the compiled code (`brim.engine.attention.paged`), so what is compiled is what lies
around it. Layers with recurrent mixers stay as they are: they run in pieces that a compiler would unroll.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from brim.engine.discover import AttentionLayers
from brim.engine.recurrent_states import recurrent_mixers


def compile_layers(backbone: torch.nn.Module, layers: AttentionLayers, backend: str = "inductor") -> int:
    """Compile every decoder layer that attends and does not recur; how many there are."""
    recurrent = {id(module) for module in recurrent_mixers(backbone)}
    count = 0
    for layer in _decoder_layers(backbone, layers):
        if not any(id(module) in recurrent for module in layer.modules()):
            layer.compile(dynamic=True, backend=backend)
            count += 1
    return count


def drop_compiled(model: torch.nn.Module) -> None:
    """Run every module as it was written again."""
    for module in model.modules():
        module._compiled_call_impl = None


def _decoder_layers(backbone: torch.nn.Module, layers: AttentionLayers) -> Iterator[torch.nn.Module]:
    attention = {id(module) for module in layers.modules}
    for modules in backbone.modules():
        if isinstance(modules, torch.nn.ModuleList):
            for module in modules:
                if any(id(inner) in attention for inner in module.modules()):
                    yield module
