"""The KV cache of a worker in blocks, tokens and bytes (`Blocks`).

Block 0 is vLLM's null block, which no request may have: so many tokens need one block more than they fill. Tokens are
those of whole requests, as vLLM itself says the size of its cache: with several groups of layers (hybrids, sliding
windows), every group has blocks of its own for the tokens of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brim.units import MIB, ceil_div, round_up

SEGMENT_BYTES = 2 * MIB  # to which the CUDA allocator rounds large allocations


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a block holds and costs."""

    tokens: int  # of the longest request
    of_request: int  # blocks that hold them, at most as many
    bytes: int  # of a block, as vLLM's core counts
    tensors: tuple[int, ...]  # bytes of a block in each separate allocation
    rounding_bytes: int = 1  # of an allocation

    def count(self, kv_tokens: int) -> int:
        """Blocks that hold so many tokens, and the null block."""
        return ceil_div(kv_tokens * self.of_request, self.tokens) + 1

    def held_tokens(self, blocks: int) -> int:
        """Tokens for which so many blocks are needed, the null block among them."""
        return (blocks - 1) * self.tokens // self.of_request

    def price(self, kv_tokens: int) -> int:
        """Bytes of device memory for so many tokens."""
        blocks = self.count(kv_tokens)
        return sum(round_up(size * blocks, self.rounding_bytes) for size in self.tensors)

    def kv_bytes(self, kv_tokens: int) -> int:
        """The available memory from which vLLM's core computes exactly these blocks."""
        return self.count(kv_tokens) * self.bytes

    def tokens_of(self, kv_bytes: int) -> int:
        """The tokens of a given `kv_cache_memory_bytes`."""
        return self.held_tokens(kv_bytes // self.bytes)


def request_tokens(longest: int, needed_blocks: int, block_tokens: Sequence[int]) -> tuple[int, int]:
    """Tokens of the longest request and the blocks that hold them; `block_tokens` are those of every group's blocks.

    With one group, blocks are filled. More blocks than tokens would be no count of either: then a block stands for
    its own tokens.
    """
    if len(block_tokens) == 1 or needed_blocks > longest:
        return min(block_tokens), 1
    return longest, needed_blocks


def separate_tensors(tensors: Sequence[object], blocks: int, block_bytes: int) -> tuple[int, ...]:
    """Bytes of a block in each allocation, from the tensors of a cache of so many blocks.

    Newer versions make one allocation, of which every tensor is a part. Older ones make one for each tensor, except for
    packed ones (with a stride between blocks), which are parts of one.
    """
    sizes = [(int(getattr(one, "size")) // blocks, bool(getattr(one, "block_stride", 0))) for one in tensors]  # noqa: B009
    own = tuple(size for size, packed in sizes if not packed)
    return own if sum(own) == block_bytes else (block_bytes,)
