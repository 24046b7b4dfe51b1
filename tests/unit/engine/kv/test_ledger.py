"""`KvLedger` beside a simulated device: whatever is asked of it, every query finds its own text in its blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brim.engine.kv.blocks import SCRATCH
from brim.engine.kv.digests import extend_digests
from brim.engine.kv.geometry import KvShape, LayerGeometry, LayerGroup, group_layers, pool_shape
from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.request_blocks import RequestBlocks
from tests.unit.engine.schedule.simulated_device import VOCAB, SimulatedDevice

SLOTS = 4
tokens = st.integers(0, VOCAB - 1)
windows = st.one_of(st.none(), st.integers(1, 12))


def groups_of(*windows: int | None) -> tuple[LayerGroup, ...]:
    return tuple(LayerGroup(window, (number,), 1) for number, window in enumerate(windows))


def ledger_of(groups: tuple[LayerGroup, ...], blocks: tuple[int, ...], size: int = 4) -> KvLedger:
    return KvLedger(groups, KvShape(max(blocks) * size, size, blocks))


@dataclass
class Writer:
    """A request: its text so far, all of it computed."""

    blocks: RequestBlocks
    text: list[int]

    def digests(self, size: int) -> list[bytes]:
        found: list[bytes] = []
        extend_digests(found, self.text, size, b"")
        return found


class LedgerMachine(RuleBasedStateMachine):
    @initialize(
        windows=st.lists(windows, min_size=1, max_size=3, unique=True),
        size=st.integers(1, 4),
        blocks=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    )
    def start(self, windows: list[int | None], size: int, blocks: list[int]) -> None:
        groups = groups_of(*windows)
        self.size = size
        self.ledger = ledger_of(groups, tuple(blocks[: len(groups)]), size)
        self.device = SimulatedDevice(self.ledger)
        self.writers: dict[int, Writer] = {}
        self.texts: list[list[int]] = [[]]  # texts there have been, to begin like them

    def free_slots(self) -> list[int]:
        return [slot for slot in range(SLOTS) if slot not in self.writers]

    def some_writer(self, data: st.DataObject) -> Writer:
        return self.writers[data.draw(st.sampled_from(sorted(self.writers)), label="slot")]

    @precondition(lambda self: self.free_slots())
    @rule(data=st.data(), more=st.lists(tokens, min_size=1, max_size=6))
    def open(self, data: st.DataObject, more: list[int]) -> None:
        """A request that begins like another one did, and reuses what is there."""
        slot = self.free_slots()[0]
        text = [*data.draw(st.sampled_from(self.texts), label="begins like"), *more]
        writer = Writer(self.ledger.open(slot), text)
        usable = writer.digests(self.size)[: (len(text) - 1) // self.size]
        count = self.ledger.longest_prefix(self.ledger.find(usable))
        assert count == self.longest_prefix_by_trying(usable)
        self.ledger.reuse(writer.blocks, usable[:count])
        self.writers[slot] = writer
        if not self.write(writer, count * self.size):
            self.close(writer)

    def longest_prefix_by_trying(self, digests: list[bytes]) -> int:
        best = 0
        for count in range(1, len(digests) + 1):
            seen_by_next = [
                (pool, column)
                for pool, group in zip(self.ledger.pools, self.ledger.groups, strict=True)
                for column in range(count)
                for position in range(column * self.size, (column + 1) * self.size)
                if group.window is None or position > count * self.size - group.window
            ]
            if all(pool.find(digests[column]) is not None for pool, column in seen_by_next):
                best = count
        return best

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), more=st.lists(tokens, min_size=1, max_size=9))
    def extend(self, data: st.DataObject, more: list[int]) -> None:
        writer = self.some_writer(data)
        start = len(writer.text)
        writer.text.extend(more)
        if not self.write(writer, start):
            del writer.text[start:]

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), lengths=st.lists(st.integers(1, 9), min_size=1, max_size=SLOTS))
    def fail(self, data: st.DataObject, lengths: list[int]) -> None:
        """A step that reserves for several and then fails: all hold what they held, and see what they saw."""
        writers = [self.writers[slot] for slot in sorted(self.writers)][: len(lengths)]
        before = [[list(table) for table in writer.blocks.tables] for writer in self.writers.values()]
        held = [pool.held for pool in self.ledger.pools]
        for writer, length in zip(writers, lengths, strict=False):
            start = len(writer.text)
            if self.ledger.reserve(writer.blocks, start, start + length):
                self.device.follow()
                self.device.spoil(writer.blocks.slot, start, start + length)
        if data.draw(st.booleans(), label="one leaves"):
            self.ledger.close(writers[0].blocks)
            self.ledger.rollback()
            del self.writers[writers[0].blocks.slot]
            return
        self.ledger.rollback()
        assert [[list(table) for table in writer.blocks.tables] for writer in self.writers.values()] == before
        assert [pool.held for pool in self.ledger.pools] == held
        self.device.follow()
        self.ledger.commit()
        for writer in self.writers.values():
            self.device.look(writer.blocks.slot, writer.text, len(writer.text))

    def write(self, writer: Writer, start: int) -> bool:
        """Compute the tokens from `start` on, if there is room; nothing has changed if there is not."""
        before = [list(table) for table in writer.blocks.tables], self.ledger.available()
        if not self.ledger.reserve(writer.blocks, start, len(writer.text)):
            assert ([list(table) for table in writer.blocks.tables], self.ledger.available()) == before
            return False
        for pool, table in zip(self.ledger.pools, writer.blocks.tables, strict=True):
            for block in table[start // self.size :]:
                assert pool.holders(block) == 1, "written under another holder"
        self.device.follow()
        self.ledger.commit()
        self.device.compute(writer.blocks.slot, writer.text, start)
        self.texts.append(list(writer.text))
        return True

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        writer = self.some_writer(data)
        self.ledger.publish(writer.blocks, writer.digests(self.size))

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        """What the next token of the text cannot see goes, and nothing else."""
        writer = self.some_writer(data)
        position = len(writer.text)
        kept = [[block for block in table if block != SCRATCH] for table in writer.blocks.tables]
        self.ledger.give_up_behind(writer.blocks, position)
        for group, table, before in zip(self.ledger.groups, writer.blocks.tables, kept, strict=True):
            seen = {
                past // self.size
                for past in range(position + 1)  # the next token sees itself
                if group.window is None or past > position - group.window
            }
            gone = [block == SCRATCH for block in table]
            assert gone == [column < min(seen, default=len(table)) for column in range(len(table))]
            left = [block for block in table if block != SCRATCH]
            assert left == before[len(before) - len(left) :]

    @precondition(lambda self: self.writers and self.free_slots())
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """A second request with the beginning of another, where its windows have not passed over what it would see."""
        source = self.some_writer(data)
        lengths = [
            length
            for length in range(1, len(source.text) + 1)
            if all(
                gone <= group.first_block_needed(length, self.size)
                for gone, group in zip(source.blocks.given_up, self.ledger.groups, strict=True)
            )
        ]
        length = data.draw(st.sampled_from(lengths), label="tokens")
        slot = self.free_slots()[0]
        writer = Writer(self.ledger.open(slot), source.text[:length])
        self.ledger.fork(source.blocks, writer.blocks, length)
        self.writers[slot] = writer

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def close_one(self, data: st.DataObject) -> None:
        self.close(self.some_writer(data))

    def close(self, writer: Writer) -> None:
        self.ledger.close(writer.blocks)
        del self.writers[writer.blocks.slot]

    @invariant()
    def every_reference_is_counted(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for number, pool in enumerate(self.ledger.pools):
            held = Counter(
                block for writer in self.writers.values() for block in writer.blocks.tables[number] if block != SCRATCH
            )
            assert {block: pool.holders(block) for block in range(1, pool.blocks + 1)} == {
                block: held[block] for block in range(1, pool.blocks + 1)
            }
            assert pool.held == len(held)

    def teardown(self) -> None:
        for writer in list(getattr(self, "writers", {}).values()):
            self.close(writer)
        for pool in getattr(self, "ledger", KvLedger((), KvShape(0, 1, ()))).pools:
            assert (pool.held, pool.available) == (0, pool.blocks)


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestLedger = LedgerMachine.TestCase


def test_a_fork_shares_until_one_of_them_writes() -> None:
    ledger = ledger_of(groups_of(None), (4,))
    parent = ledger.open(0)
    assert ledger.reserve(parent, 0, 6)
    child = ledger.open(1)
    ledger.fork(parent, child, 6)
    shared = list(parent.tables[0])
    assert child.tables == [shared]
    assert ledger.reserve(child, 5, 6)
    new = child.tables[0][1]
    assert ledger.copies == [(0, shared[1], new)]
    assert (parent.tables[0], child.tables[0]) == (shared, [shared[0], new])
    updates = ledger.updates[0]
    assert dict(zip(zip(updates.rows, updates.columns, strict=True), updates.blocks, strict=True)) == {
        (0, 0): shared[0],
        (0, 1): shared[1],
        (1, 0): shared[0],
        (1, 1): new,
    }


def test_a_fork_never_writes_over_what_can_be_found() -> None:
    """The parent published its answer and ended; the late fork is that block's only holder, and others find it."""
    ledger = ledger_of(groups_of(None), (4,))
    parent = ledger.open(0)
    assert ledger.reserve(parent, 0, 8)
    child = ledger.open(1)
    ledger.fork(parent, child, 6)
    ledger.publish(parent, [b"prompt", b"prompt and answer"])
    ledger.close(parent)
    found = ledger.pools[0].find(b"prompt and answer")
    assert ledger.reserve(child, 5, 6)
    assert child.tables[0][1] != found
    assert ledger.pools[0].find(b"prompt and answer") == found


def test_the_end_of_a_text_is_evicted_before_its_beginning() -> None:
    ledger = ledger_of(groups_of(None), (3,))
    request = ledger.open(0)
    assert ledger.reserve(request, 0, 12)
    digests = [b"1", b"1 2", b"1 2 3"]
    ledger.publish(request, digests)
    ledger.close(request)
    for left in (2, 1, 0):
        ledger.pools[0].take()
        assert ledger.longest_prefix(ledger.find(digests)) == left


def test_what_is_too_much_for_one_pool_is_taken_from_none() -> None:
    ledger = ledger_of(groups_of(None, 4), (8, 2))
    request = ledger.open(0)
    assert not ledger.reserve(request, 0, 12)
    assert ledger.available() == [8, 2]
    assert ledger.reserve(request, 0, 8)
    ledger.give_up_behind(request, 8)
    assert ledger.available() == [6, 1]
    assert ledger.reserve(request, 8, 12)


@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=3),
    window=windows,
    size=st.sampled_from([1, 4, 16]),
    step=st.integers(1, 40),
    batch=st.integers(1, 4),
)
@settings(max_examples=200, deadline=None)
def test_windowed_pools_are_never_short_of_what_windows_hold(
    lengths: list[int], window: int | None, size: int, step: int, batch: int
) -> None:
    """As many requests as slots, in steps of at most `step` tokens together, never run out of a capped pool."""
    if window is None or len(lengths) > batch:
        return
    groups = groups_of(window)
    ledger = KvLedger(groups, pool_shape(groups, 10**6, size, batch, step))
    requests = [(ledger.open(slot), length) for slot, length in enumerate(lengths)]
    computed = [0] * len(requests)
    while any(done < length for done, (_, length) in zip(computed, requests, strict=True)):
        budget = step
        for number, (blocks, length) in enumerate(requests):
            count = min(budget, length - computed[number])
            if count:
                assert ledger.reserve(blocks, computed[number], computed[number] + count)
                computed[number] += count
                budget -= count
        for number, (blocks, _) in enumerate(requests):
            ledger.give_up_behind(blocks, computed[number])


def test_layers_are_grouped_by_window_and_lenders_keep_nothing() -> None:
    layers = (
        LayerGeometry(2, 8, 8, window=16),
        LayerGeometry(2, 8, 4),
        LayerGeometry(2, 8, 8, window=16, lender=0),
        LayerGeometry(1, 8, 8, window=64),
    )
    assert group_layers(layers) == (
        LayerGroup(None, (1,), 24),
        LayerGroup(64, (3,), 16),
        LayerGroup(16, (0, 2), 32),
    )


@pytest.mark.parametrize(("position", "first"), [(0, 0), (5, 0), (8, 0), (9, 1), (12, 1), (13, 2)])
def test_the_first_block_a_query_sees(position: int, first: int) -> None:
    assert LayerGroup(6, (0,), 1).first_block_needed(position, 4) == first
