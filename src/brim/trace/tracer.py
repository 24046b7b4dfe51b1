"""A trace from end to end: build the model on the meta device, run the call, and simulate the allocator.

In: a config and the shape of a call. Out: a `Trace`: peak bytes above the weights, where the peak is, what is alive
there, what the caching allocator would reserve, and, when asked for, the timeline.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from brim.errors import BrimError, CannotTrace, first_line
from brim.records.trace import Trace, TraceShape
from brim.trace.allocator import CachingAllocator, ExpandableAllocator, SegmentAllocator
from brim.trace.attention import interception
from brim.trace.build import build_model
from brim.trace.calls import TracedCall, make_call
from brim.trace.parallel import rank_config
from brim.trace.watch import StorageWatch, watching
from brim.units import MIB

LARGEST_TOKENS = 1 << 40
MATMUL_WORKSPACE_BYTES = 32 * MIB  # cuBLAS on Hopper; 8 MiB before it


def trace_config(
    config: Mapping[str, Any],
    shape: TraceShape,
    *,
    name: str,
    dtype: str = "bf16",
    ranks: int = 1,
    with_timeline: bool = False,
) -> Trace:
    """Build a model, or one tensor-parallel rank's part of it, and trace one call."""
    model, attention = build_model(rank_config(config, ranks), dtype, shape.attention)
    return trace_model(model, shape, name=name, attention=attention, with_timeline=with_timeline)


def trace_model(model: Any, shape: TraceShape, *, name: str, attention: str, with_timeline: bool = False) -> Trace:
    """Trace one call of a model that is on the meta device."""
    _check(shape)
    started = time.perf_counter()
    call = make_call(model, shape)
    weights = [*model.parameters(), *model.buffers()]
    watch = StorageWatch([*weights, *call.inputs], records_operations=with_timeline)
    with watched(watch, name), _named_modules(model, watch):
        result = call.run()
        watch.finish()
        del result
    return Trace(
        model=name,
        shape=shape,
        peak_bytes=watch.peak_bytes,
        reserved_bytes=_reserved(model, call, watch, ExpandableAllocator),
        reserved_default_bytes=_reserved(model, call, watch, SegmentAllocator),
        at_module=watch.peak_module,
        at_op=watch.peak_op,
        at_shapes=watch.peak_shapes,
        live=watch.alive_at_peak(),
        seconds=time.perf_counter() - started,
        attention=attention,
        timeline=watch.timeline(),
    )


@contextmanager
def watched(watch: StorageWatch, name: str) -> Iterator[None]:
    """Run code on the meta device, with every operation recorded by the watch."""
    import torch

    try:
        with torch.no_grad(), watching(watch), interception():
            yield
    except BrimError:
        raise
    except Exception as error:
        raise CannotTrace(f"{name}: its code does not run on the meta device ({first_line(error)})") from error


def _check(shape: TraceShape) -> None:
    for name in ("tokens", "batch"):
        value = getattr(shape, name)
        if not 1 <= value <= LARGEST_TOKENS:
            raise CannotTrace(f"{name} is {value}; it must be at least 1 and below 2^40")


@contextmanager
def _named_modules(model: Any, watch: StorageWatch) -> Iterator[None]:
    """Track the path of the running module, to record where a tensor was allocated."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    paths = {id(module): path for path, module in model.named_modules()}

    def enter(module: Any, _: Any) -> None:
        watch.modules.append(paths.get(id(module), watch.modules[-1]))

    def leave(module: Any, _: Any, __: Any) -> None:
        watch.modules.pop()

    hooks = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _reserved(model: Any, call: TracedCall, watch: StorageWatch, kind: type[CachingAllocator]) -> int:
    """What the allocator reserves for the call beyond weights, matmul workspace and inputs.

    Pages of 20 MiB make the result depend on what is allocated next to the weights. The call is simulated twice, with
    the inputs in the allocator and without, and the larger result is taken.
    """
    return max(_reserved_after(model, inputs, watch, kind()) for inputs in ((), call.inputs))


def _reserved_after(model: Any, inputs: tuple[Any, ...], watch: StorageWatch, allocator: CachingAllocator) -> int:
    before: set[int] = set()
    for tensor in _loading_order(model):
        key = tensor.untyped_storage()._cdata
        if key not in before and tensor.numel():
            before.add(key)
            allocator.allocate(-len(before), tensor.numel() * tensor.element_size())
    allocator.allocate(-len(before) - 1, MATMUL_WORKSPACE_BYTES)
    for number, tensor in enumerate(inputs):
        allocator.allocate(-len(before) - 2 - number, tensor.numel() * tensor.element_size())
    held = allocator.reserved_bytes
    sizes = watch.sizes()
    for event in watch.events:
        if event > 0:
            allocator.allocate(event, sizes[event - 1])
        else:
            allocator.free(-event)
    return allocator.peak_reserved_bytes - held


def _loading_order(module: Any) -> Iterator[Any]:
    """Tensors in the order in which `module.to(device)` moves them: children first."""
    for child in module.children():
        yield from _loading_order(child)
    yield from (tensor for tensor in module._parameters.values() if tensor is not None)
    yield from (tensor for tensor in module._buffers.values() if tensor is not None)
