"""Whole steps through the Triton backend and through the reference, side by side, without a GPU.

    PYTHONPATH=src TRITON_INTERPRET=1 python tests/unit/engine/attention/kernels/interpreted_steps.py EVERY FILE

A step has requests that generate and chunks of prompts, as the engine packs them; tiles, splits and scratch are those
that the backend chooses. Blocks that no request holds are NaN. Runs every EVERYth case, and writes what was found into
FILE. A script and not a test: Triton decides when it is imported whether it interprets, and a test's process may have
imported it long before.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from brim.engine.attention.protocol import AttentionBackend, AttentionRule
from brim.engine.attention.reference import ReferenceAttention
from brim.engine.attention.triton_backend import TritonAttention
from brim.engine.device.layout import ChunkPlace, StepLayout
from brim.engine.kv.geometry import KvShape, LayerGeometry, group_layers
from brim.engine.kv.tensors import KvTensors

TYPES = {"fp16": torch.float16, "fp32": torch.float32}  # the interpreter multiplies matrices of bf16 as integers
TOLERANCES = {"fp16": (2e-3, 2e-3), "fp32": (2e-5, 2e-5)}  # absolute, relative
CPU = torch.device("cpu")
NAN = float("nan")
SPAN = 12  # tokens seen as a whole, where a case has such


@dataclass(frozen=True, slots=True)
class Step:
    """A layer, and the requests of a step: lengths of those that generate, (context, length) of chunks."""

    name: str
    layer: LayerGeometry
    decodes: tuple[int, ...] = (1, 70)
    chunks: tuple[tuple[int, int], ...] = ((0, 19), (25, 9), (40, 1))
    kind: str = "fp32"
    float8: bool = False
    softcap: float | None = None
    sinks: bool = False
    spans: bool = False
    block_size: int = 16
    max_length: int = 192  # nothing is cut
    multiprocessors: int = 1
    in_parts: bool = False  # requests that generate are cut

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of all requests, when the step is through."""
        return (*self.decodes, *(context + length for context, length in self.chunks))

    @property
    def new(self) -> tuple[int, ...]:
        """Tokens of each request in the step."""
        return (*(1 for _ in self.decodes), *(length for _, length in self.chunks))


def layer(heads: int, kv_heads: int, key_dim: int, value_dim: int = 0, **others: Any) -> LayerGeometry:
    return LayerGeometry(kv_heads, key_dim, value_dim or key_dim, query_heads=heads, **others)


LATENT = layer(16, 1, 576, 512, value_in_key=True)
LONG: dict[str, Any] = {"max_length": 1024, "multiprocessors": 16, "in_parts": True}
STEPS = (
    Step("d16", layer(2, 2, 16)),
    Step("d64 gqa4 fp16", layer(8, 2, 64), kind="fp16", block_size=32),
    Step("d64 gqa7 block 8", layer(7, 1, 64), block_size=8),
    Step("d64 mqa 19", layer(19, 1, 64), decodes=(70,), chunks=((30, 4),)),
    Step("d80 window", layer(4, 2, 80, window=24)),
    Step("window of several tiles", layer(2, 1, 16, window=80), decodes=(150,), chunks=((130, 9),)),
    Step("d96 softcap", layer(4, 1, 96), softcap=5.0),
    Step("d112 sinks", layer(4, 2, 112), sinks=True),
    Step("d128 softcap window sinks", layer(4, 1, 128, window=40), softcap=5.0, sinks=True),
    Step("d128 spans", layer(4, 1, 128), spans=True),
    Step("d64 window spans", layer(4, 2, 64, window=16), spans=True),
    Step("192/128", layer(2, 2, 192, 128)),
    Step("d256 window softcap fp16", layer(4, 2, 256, window=50), kind="fp16", softcap=30.0),
    Step("d512 gqa4 fp16", layer(8, 2, 512), kind="fp16"),
    Step("latent 576/512", LATENT, kind="fp16"),
    Step("latent 40/32", layer(4, 1, 40, 32, value_in_key=True)),
    Step("float8 d64", layer(4, 2, 64), kind="fp16", float8=True),
    Step("float8 d80 window", layer(4, 1, 80, window=24), float8=True),
    Step("parts", layer(8, 2, 64), decodes=(300, 1), chunks=(), **LONG),
    Step("parts, sinks, softcap", layer(4, 2, 80), decodes=(260, 17), softcap=5.0, sinks=True, **LONG),
    Step("parts, window", layer(4, 1, 64, window=300), decodes=(530, 40), chunks=((0, 9),), **LONG),
    Step("parts, latent", LATENT, decodes=(300,), chunks=(), kind="fp16", **LONG),
    Step("parts, float8", layer(4, 2, 64), decodes=(300, 2), chunks=(), kind="fp16", float8=True, **LONG),
    Step("decodes only", layer(4, 2, 64), chunks=()),
    Step("chunks only", layer(4, 2, 64), decodes=()),
    Step("many short chunks", layer(4, 2, 64), chunks=((0, 3), (5, 1), (16, 2), (0, 17), (31, 1)) * 2),
)


class World:
    """One layer's pool with the past of every request in it, and the step that comes next."""

    def __init__(self, step: Step) -> None:
        self.step = step
        torch.manual_seed(len(step.name))
        self.dtype = TYPES[step.kind]
        requests, size = len(step.lengths), step.block_size
        held = [-(-length // size) for length in step.lengths]
        groups = group_layers((step.layer,))
        self.kv = KvTensors(
            (step.layer,),
            groups,
            KvShape(sum(held) * size, size, (sum(held) + 2,)),
            rows=requests + 1,
            max_length=step.max_length,
            dtype=torch.float8_e4m3fn if step.float8 else self.dtype,
            device=CPU,
        )
        for cache in self.cache.stored:
            cache.copy_(torch.full(cache.shape, NAN))
        self.slots = torch.randperm(requests)  # which row of the table is a request's
        blocks = iter((torch.randperm(sum(held)) + 1).tolist())
        for slot, count in zip(self.slots.tolist(), held, strict=True):
            self.table[slot, :count] = torch.tensor([next(blocks) for _ in range(count)], dtype=torch.int32)
        for slot, length, new in zip(self.slots, step.lengths, step.new, strict=True):
            past = length - new
            self._write(self.kv.write_slots(0, slot.expand(past), torch.arange(past)), *self.tokens(past))

    @property
    def cache(self) -> Any:
        return self.kv.layers[0]

    @property
    def table(self) -> torch.Tensor:
        return self.kv.tables[0]

    def tokens(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values as models give them: transposed views. 8-bit caches get numbers that 8 bits can hold."""
        shape = self.step.layer
        key = torch.randn((shape.kv_heads, count, shape.key_dim))
        value = key[..., : shape.value_dim]
        if not shape.value_in_key:
            value = torch.randn((shape.kv_heads, count, shape.value_dim))
        if self.step.float8:  # the interpreter does not carry when it rounds up
            key, value = (one.to(torch.float8_e4m3fn).float() for one in (key, value))
        return key.to(self.dtype).transpose(0, 1), value.to(self.dtype).transpose(0, 1)

    def _write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        ReferenceAttention().store(self.cache, key, value, slots)

    def layout(self) -> StepLayout:
        step = self.step
        decodes, slots = len(step.decodes), self.slots
        starts = torch.tensor([0, *(length for _, length in step.chunks)]).cumsum(0)
        positions = torch.cat(
            [torch.arange(length - new, length) for length, new in zip(step.lengths, step.new, strict=True)]
        )
        rows = slots.repeat_interleave(torch.tensor(step.new))
        return StepLayout(
            decodes=decodes,
            chunks=tuple(
                ChunkPlace(decodes + int(start), length, int(slot), context)
                for start, slot, (context, length) in zip(starts, slots[decodes:], step.chunks, strict=False)
            ),
            decode_slots=slots[:decodes],
            decode_lengths=torch.tensor(step.decodes, dtype=torch.int32),
            chunk_slots=slots[decodes:],
            chunk_starts=starts.int(),
            chunk_lengths=torch.tensor(step.lengths[decodes:], dtype=torch.int32),
            write_slots=(self.kv.write_slots(0, rows, positions),),
            longest_chunk=max((length for _, length in step.chunks), default=0),
            visible_until=_spans(positions[decodes:], step) if step.spans else None,
        )


def _spans(positions: torch.Tensor, step: Step) -> torch.Tensor:
    """Every second run of SPAN positions is an image: seen as a whole, as far as it is in the step."""
    ends = torch.cat([torch.full((length,), context + length) for context, length in step.chunks])
    run = positions // SPAN
    until = torch.where(run % 2 == 1, (run + 1) * SPAN - 1, positions)
    return torch.minimum(until, ends - 1).int()


def run(backend: AttentionBackend, world: World, inputs: tuple[torch.Tensor, ...], rule: AttentionRule) -> torch.Tensor:
    query, key, value = inputs
    layout = world.layout()
    backend.prepare(layout)
    backend.store(world.cache, key, value, layout.write_slots[0])
    return backend.attend(query, world.cache, world.table, layout, rule)


def check(step: Step) -> dict[str, Any]:
    """The largest difference from the reference in units of what is tolerated, and whether what was stored is equal."""
    started = time.perf_counter()
    ours, reference = World(step), World(step)
    tokens, shape = sum(step.new), step.layer
    query = (2 * torch.randn((shape.query_heads, tokens, shape.key_dim))).to(ours.dtype).transpose(0, 1)
    key, value = ours.tokens(tokens)
    sinks = torch.randn(shape.query_heads).to(ours.dtype) if step.sinks else None
    rule = AttentionRule(shape.key_dim**-0.5, shape.window, step.softcap, sinks, step.block_size)
    batches = range(1, len(step.lengths) + 1)
    backend = TritonAttention((shape,), batches, step.max_length, CPU, step.multiprocessors)
    for scratch in (backend._scratch.partials, backend._scratch.stats):
        scratch.fill_(NAN)
    found = run(backend, ours, (query, key, value), rule).double()
    wanted = run(ReferenceAttention(), reference, (query.float(), key, value), rule).double()  # computes as it is asked
    absolute, relative = TOLERANCES[step.kind]
    error = float(((found - wanted).abs() / (absolute + relative * wanted.abs())).max())
    stored = all(
        torch.equal(mine.float().nan_to_num(7e3), other.float().nan_to_num(7e3))
        for mine, other in zip(ours.cache.stored, reference.cache.stored, strict=True)
    )
    cut = any(parts.splits > 1 for parts in backend._parts.values())
    return {
        "step": step.name,
        "error": error,
        "ok": error <= 1 and stored and cut == step.in_parts,  # a NaN is not
        "stored": stored,
        "in_parts": cut,
        "seconds": round(time.perf_counter() - started, 2),
    }


def main() -> None:
    every, file = int(sys.argv[1]), Path(sys.argv[2])
    file.write_text(json.dumps([check(step) for step in STEPS[::every]], indent=1) + "\n")


if __name__ == "__main__":
    main()
