"""What was found of a waiting text and is kept says what a fresh look would say, whatever the pools have done since."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from brim.engine.kv.blocks import BlockPool
from brim.engine.kv.common_blocks import Shareable
from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.prefix_matches import PoolChanges, PrefixMatch
from tests.unit.engine.kv.test_ledger import LedgerMachine, Writer, groups_of, ledger_of, windows


class FindingMachine(LedgerMachine):
    """A ledger at work beside texts that wait. Few changes are remembered, so that some findings are too old."""

    @initialize(
        windows=st.lists(windows, min_size=1, max_size=3, unique=True),
        size=st.integers(1, 4),
        blocks=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    )
    def start(self, windows: list[int | None], size: int, blocks: list[int]) -> None:
        LedgerMachine.start(self, windows, size, blocks)
        self.ledger.changes._digests = deque(maxlen=6)
        self.kept: dict[tuple[int, ...], PrefixMatch] = {}

    def digests(self, text: tuple[int, ...]) -> list[bytes]:
        return Writer(self.ledger.open(0), list(text)).digests(self.size)

    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        text = tuple(data.draw(st.sampled_from(self.texts), label="waits"))
        self.kept.setdefault(text, self.ledger.find(self.digests(text)))

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def look_again(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(sorted(self.kept)), label="looked at")
        digests = self.digests(text)
        kept, fresh = self.ledger.still_found(self.kept[text], len(digests)), self.ledger.find(digests)
        assert kept is self.kept[text]
        assert [found.tolist() for found in kept.blocks] == [found.tolist() for found in fresh.blocks]
        for pool, found in zip(self.ledger.pools, kept.blocks, strict=True):
            assert found.tolist() == [pool.find(digest) or 0 for digest in digests]
        count = self.ledger.longest_prefix(kept)
        assert count == self.longest_prefix_by_trying(digests)
        assert self.ledger.shareable(kept, count) == self.shareable_one_by_one(digests[:count])

    def shareable_one_by_one(self, digests: list[bytes]) -> Shareable:
        number = self.ledger.unwindowed
        if number is None:
            return Shareable()
        pool, owners = self.ledger.pools[number], self.ledger.commons._owners
        held = [block for block in map(pool.find, digests) if block is not None and pool.holders(block)]
        owned = [owners[block] for block in held if block not in self.ledger.commons]
        return Shareable(len(held) - len(owned), len(owned), frozenset(owned))

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def could_fork(self, data: st.DataObject) -> None:
        """What a fork would share of another's blocks is what it would share of each of them."""
        writer, number = self.some_writer(data), self.ledger.unwindowed
        tokens = data.draw(st.integers(0, len(writer.text)))
        if number is not None:
            blocks = writer.blocks.tables[number][: tokens // self.size]
            expected = self.ledger.commons.shareable(np.array(blocks, np.int32))
            assert self.ledger.forkable(writer.blocks, tokens) == expected


FindingMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestFindings = FindingMachine.TestCase


class Counted(dict[bytes, int]):
    """A pool's blocks by content, with the lookups counted."""

    lookups = 0

    def get(self, key: bytes, default: object = None) -> object:  # type: ignore[override]
        self.lookups += 1
        return super().get(key, default)


def counted(ledger: KvLedger) -> list[Counted]:
    found = []
    for pool in ledger.pools:
        pool._by_content = Counted(pool._by_content)
        found.append(pool._by_content)
    return found


def with_text(windows: tuple[int | None, ...], blocks: int) -> tuple[KvLedger, list[bytes]]:
    """A ledger in which a text of so many blocks is cached, in every group all of it."""
    ledger = ledger_of(groups_of(*windows), (2 * blocks,) * len(windows))
    request = ledger.open(0)
    digests = [number.to_bytes(4, "little") for number in range(blocks)]
    assert ledger.reserve(request, 0, blocks * ledger.block_size)
    ledger.commit()
    ledger.publish(request, digests)
    ledger.close(request)
    return ledger, digests


@pytest.mark.parametrize("windows", [(None,), (None, 81), (81,)])
def test_a_finding_that_is_kept_costs_what_has_changed(windows: tuple[int | None, ...]) -> None:
    ledger, digests = with_text(windows, 1000)
    lookups = counted(ledger)
    finding = ledger.find(digests)
    assert ledger.longest_prefix(finding) == 1000
    assert [one.lookups for one in lookups] == [1000] * len(windows)
    for pool in ledger.pools:
        for _ in range(1001):
            pool.take()  # the last block of the text goes: it was released first
    assert ledger.longest_prefix(ledger.still_found(finding, 1000) or pytest.fail("it is of this ledger")) == 999
    assert [one.lookups for one in lookups] == [1000 + len(windows)] * len(windows)


@pytest.mark.parametrize("hole_every", [1, 2, 19])
def test_windows_with_holes_are_looked_at_once(hole_every: int) -> None:
    """A window of 20 blocks is nowhere whole: each block is looked up once, and not once for each window it is in."""
    ledger, digests = with_text((None, 81), 600)
    windows = ledger.pools[1]
    for block in [windows.find(digest) for digest in digests[::hole_every]]:
        assert block is not None
        del windows._by_content[windows._content.pop(block)]
    lookups = counted(ledger)
    assert ledger.longest_prefix(ledger.find(digests)) == 0
    assert [one.lookups for one in lookups] == [600, 600]


def test_what_cannot_be_remembered_is_looked_up_again() -> None:
    changes = PoolChanges()
    pool = BlockPool(3, changes)
    changes._digests = deque(maxlen=2)
    finding = PrefixMatch([b"a", b"b"], changes, ())
    finding.bring_up_to_date([pool])
    for digest in (b"b", b"x", b"a"):
        pool.publish(pool.take(), digest)
    finding.bring_up_to_date([pool])
    assert finding.blocks[0].tolist() == [pool.find(b"a"), pool.find(b"b")]
    for block in (1, 2, 3):
        pool.release(block)
    pool.forget_content()
    finding.bring_up_to_date([pool])
    assert finding.blocks[0].tolist() == [0, 0]
