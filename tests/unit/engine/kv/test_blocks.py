"""`BlockPool` beside a model of it: sets, counts, and a list in the order of use."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brim.engine.kv.blocks import SCRATCH, BlockPool

DIGESTS = [bytes([number]) for number in range(4)]


class PoolMachine(RuleBasedStateMachine):
    """Random uses of a pool. The model: who holds what, what is known of a block, which cached block is the oldest."""

    @initialize(blocks=st.integers(1, 6))
    def start(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.blocks = set(range(1, blocks + 1))
        self.holders: dict[int, int] = {}
        self.content: dict[int, bytes] = {}
        self.cached: list[int] = []  # the oldest first
        self.favourites: set[bytes] = set()

    @property
    def free(self) -> set[int]:
        return self.blocks - self.holders.keys() - set(self.cached)

    @precondition(lambda self: self.free or self.cached)
    @rule()
    def take(self) -> None:
        free = self.free
        block = self.pool.take()
        if free:
            assert block in free, "nothing is evicted while a block is free"
        else:
            plain = [one for one in self.cached if self.content[one] not in self.favourites]
            assert block == (plain or self.cached)[0], "the one used longest ago goes first, favoured ones last"
            self.cached.remove(block)
            del self.content[block]
        self.holders[block] = 1

    @precondition(lambda self: self.holders or self.cached)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted([*self.holders, *self.cached])))
        self.pool.share(block)
        if block in self.cached:
            self.cached.remove(block)
        self.holders[block] = self.holders.get(block, 0) + 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders)))
        self.pool.release(block)
        self.holders[block] -= 1
        if self.holders[block] == 0:
            del self.holders[block]
            if block in self.content:
                self.cached.append(block)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), digest=st.sampled_from(DIGESTS))
    def publish(self, data: st.DataObject, digest: bytes) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders)))
        self.pool.publish(block, digest)
        if digest not in self.content.values() and block not in self.content:
            self.content[block] = digest

    @rule(digest=st.sampled_from(DIGESTS), favoured=st.booleans())
    def favour(self, digest: bytes, favoured: bool) -> None:
        changed = (digest in self.favourites) != favoured
        (self.pool.favour if favoured else self.pool.disfavour)(digest)
        (self.favourites.add if favoured else self.favourites.discard)(digest)
        moved = [block for block in self.cached if changed and self.content[block] == digest]
        self.cached = [block for block in self.cached if block not in moved] + moved

    @rule()
    def forget_content(self) -> None:
        self.pool.forget_content()
        self.content.clear()
        self.cached.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.pool.problems([[block] * count for block, count in self.holders.items()]) == []
        assert self.pool.held == len(self.holders)
        assert self.pool.cached == len(self.cached)
        assert self.pool.available == len(self.free) + len(self.cached)
        assert SCRATCH not in self.holders
        for block in self.blocks:
            assert self.pool.holders(block) == self.holders.get(block, 0)
            assert self.pool.writable(block) == (self.holders.get(block) == 1 and block not in self.content)
        where = {digest: block for block, digest in self.content.items()}
        assert {digest: self.pool.find(digest) for digest in DIGESTS} == {
            digest: where.get(digest) for digest in DIGESTS
        }

    def teardown(self) -> None:
        """Whatever happened, everything that is released can be handed out again, once."""
        if not hasattr(self, "pool"):
            return
        for block, count in self.holders.items():
            for _ in range(count):
                self.pool.release(block)
        assert self.pool.available == len(self.blocks)
        assert {self.pool.take() for _ in self.blocks} == self.blocks
        assert self.pool.available == 0


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def test_what_nobody_holds_cannot_be_released_or_published() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.release(block)
    with pytest.raises(AssertionError, match="released more often"):
        pool.release(block)
    with pytest.raises(AssertionError, match="cannot be published"):
        pool.publish(block, b"content")


def test_a_block_that_is_used_again_is_evicted_last() -> None:
    pool = BlockPool(3)
    first, second, third = (pool.take() for _ in range(3))
    for block, digest in ((first, b"1"), (second, b"2"), (third, b"3")):
        pool.publish(block, digest)
        pool.release(block)
    pool.share(first)
    pool.release(first)
    assert [pool.take() for _ in range(3)] == [second, third, first]
    assert [pool.find(digest) for digest in (b"1", b"2", b"3")] == [None, None, None]


def test_an_audit_names_every_kind_of_damage() -> None:
    def damaged() -> BlockPool:
        pool = BlockPool(4)
        for digest in (b"a", b"b"):
            pool.publish(pool.take(), digest)  # blocks 1 and 2
        pool.release(2)
        assert pool.problems([[SCRATCH, 1]]) == []
        return pool

    assert damaged().problems([[1], [1]]) == ["block 1 has 1 holders, and is in 2 tables"]
    assert damaged().problems([]) == [
        "block 1 has 1 holders, and is in 0 tables",
        "1 blocks are neither held nor free",
    ]
    assert damaged().problems([[1, 9]]) == ["a block above 4 is held or free"]
    pool = damaged()
    pool._free.extend([3, 1])
    assert pool.problems([[1]]) == [
        "block 3 is free 2 times",
        "block 1 is held and free",
        "-1 blocks are neither held nor free",
    ]
    pool = damaged()
    pool._by_content[b"b"] = 1
    assert pool.problems([[1]]) == ["blocks are found by a content that they do not have"]
    pool = damaged()
    del pool._by_content[pool._content.pop(2)]
    assert pool.problems([[1]]) == ["a block without known content is cached"]
    pool = damaged()
    pool._favourites.add(b"b")
    assert pool.problems([[1]]) == ["a cached block is favoured for a content that is not"]


def test_an_audit_looks_at_no_block_by_itself() -> None:
    """Python code runs a few times for a pool, and not for each of its blocks."""
    counts = []
    for blocks in (100, 10_000):
        pool = BlockPool(blocks)
        table = [pool.take() for _ in range(blocks // 2)]
        for block in table[::2]:
            pool.publish(block, block.to_bytes(4, "little"))
        lines = 0

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal lines
            lines += event == "line"
            return trace

        sys.settrace(trace)
        try:
            assert pool.problems([table]) == []
        finally:
            sys.settrace(None)
        counts.append(lines)
    assert max(counts) < 500, counts  # what the garbage collector calls meanwhile counts too
