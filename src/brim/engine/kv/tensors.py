"""The tensors of the KV pool: keys and values by layer, block tables by group.

`KvTensors(...)` allocates all of them and is their only owner.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from brim.engine.kv.blocks import SCRATCH
from brim.engine.kv.geometry import KvShape, LayerGeometry, LayerGroup
from brim.units import ceil_div


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer: [slots, heads, dim], slot = block × block size + place in the block."""

    keys: torch.Tensor
    values: torch.Tensor
    value_in_key: bool = False  # `values` is a view of `keys`: writing a key writes its value

    @property
    def stored(self) -> tuple[torch.Tensor, ...]:
        """The tensors that hold something of their own."""
        return (self.keys,) if self.value_in_key else (self.keys, self.values)


class KvTensors:
    """Keys, values and block tables for a pool of a given shape."""

    def __init__(
        self,
        layers: tuple[LayerGeometry, ...],
        groups: tuple[LayerGroup, ...],
        shape: KvShape,
        *,
        rows: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = shape.block_size
        self.group_of = {number: index for index, group in enumerate(groups) for number in group.layers}
        self.groups = groups
        self.layers: list[LayerCache] = []
        for number, layer in enumerate(layers):
            if layer.lender is not None:
                self.layers.append(self.layers[layer.lender])
                continue
            slots = (shape.blocks[self.group_of[number]] + 1) * shape.block_size
            # Zeros, not uninitialised memory: a masked key may be infinite, but 0 × NaN is NaN.
            keys = torch.zeros((slots, layer.kv_heads, layer.key_dim), dtype=dtype, device=device)
            if layer.value_in_key:
                values = keys[..., : layer.value_dim]
            else:
                values = torch.zeros((slots, layer.kv_heads, layer.value_dim), dtype=dtype, device=device)
            self.layers.append(LayerCache(keys, values, layer.value_in_key))
        columns = ceil_div(max_length, shape.block_size) + 1
        self.tables = [torch.full((rows, columns), SCRATCH, dtype=torch.int32, device=device) for _ in groups]

    def rows_of(self, group: int) -> list[torch.Tensor]:
        """All that a group stores, as whole blocks: int64 [blocks, what one block holds], one for each tensor."""
        caches = {id(self.layers[number]): self.layers[number] for number in self.groups[group].layers}  # some are lent
        stored = [tensor for cache in caches.values() for tensor in cache.stored]
        blocks = [tensor.shape[0] // self.block_size for tensor in stored]
        return [tensor.view(-1).view(torch.int64).view(count, -1) for tensor, count in zip(stored, blocks, strict=True)]

    def copy_blocks(self, copies: list[tuple[int, int, int]]) -> None:
        """Copy whole blocks: (group, from, to)."""
        size = self.block_size
        for group, source, target in copies:
            for number in self.groups[group].layers:
                for cache in self.layers[number].stored:
                    cache[target * size : (target + 1) * size] = cache[source * size : (source + 1) * size]

    def write_slots(self, group: int, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Where tokens at these positions of these rows are written."""
        size = self.block_size
        blocks = self.tables[group][rows, positions // size]
        return blocks.long() * size + positions % size
