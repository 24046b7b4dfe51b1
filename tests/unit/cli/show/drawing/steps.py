"""Steps of a model that exist only as timelines: what pictures are drawn of, without torch."""

from __future__ import annotations

from collections.abc import Sequence

from brim.records.trace import Allocation, Operation, Timeline, Trace, TraceShape

MIB = 1 << 20


def timeline_of(operations: Sequence[tuple[str, str]], allocations: Sequence[Allocation]) -> Timeline:
    """The timeline of (name, module) operations, with live bytes added up from the allocations."""
    live = [sum(made.bytes for made in allocations if made.is_live_at(index)) for index in range(len(operations))]
    found = (Operation(*operation, bytes_) for operation, bytes_ in zip(operations, live, strict=True))
    return Timeline(tuple(found), tuple(allocations))


def decoder(
    layers: int = 4, modules: Sequence[str] = ("norm", "self_attn", "mlp.up", "mlp.act", "mlp.down")
) -> Timeline:
    """A decoder whose layers keep one tensor of every module until their end; `mlp.up` is the largest."""
    operations, allocations = [("aten.embedding.default", "model.embed")], []
    last = 1 + layers * (len(modules) + 1)
    allocations.append(Allocation(MIB, "aten.embedding.default", "model.embed", (8, 64), 0, last + 1))
    for layer in range(layers):
        end = len(operations) + len(modules)
        for number, module in enumerate(modules):
            path = f"model.layers.{layer}.{module}"
            size = 8 * MIB if module == "mlp.up" else MIB + number * 512
            allocations.append(Allocation(size, "aten.mm.default", path, (8, size // 16), len(operations), end))
            operations.append(("aten.mm.default", path))
        freed = min(end + len(modules) + 2, last + 1)  # with the next layer
        allocations.append(Allocation(MIB, "aten.add.Tensor", f"model.layers.{layer}", (8, 64), end, freed))
        operations.append(("aten.add.Tensor", f"model.layers.{layer}"))
    allocations.append(Allocation(MIB, "aten.mm.default", "lm_head", (8, 64), last, last + 1))
    operations.append(("aten.mm.default", "lm_head"))
    return timeline_of(operations, allocations)


def trace_of(timeline: Timeline, name: str = "a model") -> Trace:
    """A trace with this timeline."""
    peak = timeline.operations[timeline.peak_at]
    return Trace(
        model=name,
        shape=TraceShape(tokens=8),
        peak_bytes=peak.live_bytes,
        reserved_bytes=peak.live_bytes,
        reserved_default_bytes=peak.live_bytes,
        at_module=peak.module,
        at_op=peak.name,
        at_shapes=((8, 64),),
        live=(),
        seconds=0.1,
        timeline=timeline,
    )
