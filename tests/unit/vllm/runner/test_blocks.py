"""Tokens, blocks and bytes of vLLM's KV cache."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from brim.units import MIB
from brim.vllm.runner.blocks import Blocks, separate_tensors

BLOCKS = st.builds(
    lambda tokens, tensors, rounding: Blocks(tokens, sum(tensors), tuple(tensors), rounding),
    st.sampled_from([1, 16, 128]),
    st.lists(st.integers(1, 4096), min_size=1, max_size=4),
    st.sampled_from([1, 2 * MIB]),
)


@given(BLOCKS, st.integers(0, 100_000))
def test_the_core_finds_exactly_the_blocks_that_stand(blocks: Blocks, tokens: int) -> None:
    assert blocks.kv_bytes(tokens) // blocks.bytes == blocks.count(tokens)
    assert blocks.held_tokens(blocks.count(tokens)) >= tokens


@given(BLOCKS, st.integers(0, 100_000))
def test_the_price_never_falls_and_covers_the_blocks(blocks: Blocks, tokens: int) -> None:
    assert blocks.kv_bytes(tokens) <= blocks.price(tokens) <= blocks.price(tokens + 1)


@given(BLOCKS, st.integers(1, 1000))
def test_a_pinned_size_gives_its_blocks_back(blocks: Blocks, count: int) -> None:
    tokens = blocks.tokens_of(count * blocks.bytes)
    assert blocks.count(tokens) == count


def tensor(size: int, stride: int = 0) -> SimpleNamespace:
    return SimpleNamespace(size=size, block_stride=stride)


def test_one_allocation_for_each_tensor() -> None:
    assert separate_tensors([tensor(20), tensor(40)], 2, 30) == (10, 20)


def test_packed_tensors_are_parts_of_one_allocation() -> None:
    assert separate_tensors([tensor(60, 30), tensor(60, 30)], 2, 30) == (30,)


def test_all_tensors_in_one_allocation() -> None:
    assert separate_tensors([tensor(60), tensor(60)], 2, 30) == (30,)
