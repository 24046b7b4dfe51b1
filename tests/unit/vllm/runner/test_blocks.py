"""Tokens, blocks and bytes of vLLM's KV cache."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from brim.units import MIB
from brim.vllm.runner.blocks import Blocks, request_tokens, separate_tensors

BLOCKS = st.builds(
    lambda request, tensors, rounding: Blocks(*request, sum(tensors), tuple(tensors), rounding),
    st.tuples(st.integers(1, 20_000), st.integers(1, 1_000)).map(lambda pair: (max(pair), min(pair))),
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


def test_with_one_group_blocks_are_filled() -> None:
    assert request_tokens(1000, 63, [16]) == (16, 1)


def test_with_several_groups_tokens_are_those_of_whole_requests() -> None:
    blocks = Blocks(*request_tokens(8192, 3136, [16, 16, 16, 16, 16, 16, 16]), 100, (100,))
    assert blocks.held_tokens(3136 * 10 + 1) == 81_920  # ten requests, and the null block


def test_a_request_of_more_blocks_than_tokens_is_counted_by_blocks() -> None:
    assert request_tokens(64, 160, [16] * 40) == (16, 1)


def tensor(size: int, stride: int = 0) -> SimpleNamespace:
    return SimpleNamespace(size=size, block_stride=stride)


def test_one_allocation_for_each_tensor() -> None:
    assert separate_tensors([tensor(20), tensor(40)], 2, 30) == (10, 20)


def test_packed_tensors_are_parts_of_one_allocation() -> None:
    assert separate_tensors([tensor(60, 30), tensor(60, 30)], 2, 30) == (30,)


def test_all_tensors_in_one_allocation() -> None:
    assert separate_tensors([tensor(60), tensor(60)], 2, 30) == (30,)
