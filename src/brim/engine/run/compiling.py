"""`torch.compile` for a decoder's layers, one at a time: equal layers share one compiled function.

Attention is one opaque operator in the compiled code (`brim.engine.attention.paged`); the rest of a layer is compiled.
Layers with recurrent mixers stay eager: they run in pieces that a compiler would unroll.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import torch

from brim.engine.recurrent.states import recurrent_mixers
from brim.engine.weights.discover import AttentionLayers


def compile_layers(backbone: torch.nn.Module, layers: AttentionLayers, backend: str = "inductor") -> int:
    """Compile every decoder layer with attention and without a recurrent mixer; returns how many there are."""
    # A layer's numbers (an epsilon, a scale) are constants. As unknowns they would cost a second pass of the compiler,
    # about two seconds of every start. The setting is read at the first call of a layer, hence for the whole process.
    torch._dynamo.config.specialize_float = True
    _keep_kernels_together()
    recurrent = {id(module) for module in recurrent_mixers(backbone)}
    count = 0
    for layer in _decoder_layers(backbone, layers):
        if not any(id(module) in recurrent for module in layer.modules()):
            layer.compile(dynamic=True, backend=backend)
            count += 1
    return count


def _keep_kernels_together() -> None:
    """Keep Triton's cache directory.

    torch's compiler changes it when it compiles, but not when it finds its code in a cache: every second start would
    look for Brim's kernels in the wrong place and compile them again.
    """
    if find_spec("triton") is not None:
        from triton import knobs

        os.environ.setdefault("TRITON_CACHE_DIR", knobs.cache.dir)


def drop_compiled(model: torch.nn.Module) -> None:
    """Make every module eager again."""
    for module in model.modules():
        module._compiled_call_impl = None


def _decoder_layers(backbone: torch.nn.Module, layers: AttentionLayers) -> Iterator[torch.nn.Module]:
    attention = {id(module) for module in layers.modules}
    for modules in backbone.modules():
        if isinstance(modules, torch.nn.ModuleList):
            for module in modules:
                if any(id(inner) in attention for inner in module.modules()):
                    yield module
