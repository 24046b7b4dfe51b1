"""Summaries of pools: bounded, the same ones on every replica, and never longer a prefix than there is."""

from __future__ import annotations

import random
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.guard.routing.sent import Conversations, Sent, SentSince
from brim.guard.routing.summary import Holders, summarise
from brim.records.health import Status
from brim.records.routing import Forecast, PrefixSummary, ReplicaStatistics, short_digests


def chain(name: str, length: int) -> list[bytes]:
    """Digests of a conversation's blocks."""
    return [blake2b(f"{name} {number}".encode(), digest_size=16).digest() for number in range(length)]


def test_a_small_pool_is_told_whole() -> None:
    found = summarise(chain("a", 100))
    assert (found.count, found.skipped_bits) == (100, 0)
    holders = Holders(3)
    holders.put(1, found)
    assert holders.prefixes(short_digests(chain("a", 120))).tolist() == [0, 100, 0]


def test_a_large_pool_is_told_in_part() -> None:
    digests = [one for conversation in range(100) for one in chain(f"{conversation}", 500)]
    found = summarise(digests)
    assert 1024 <= found.count <= 2048
    assert found.skipped_bits == 5
    holders = Holders(1)
    holders.put(0, found)
    for conversation in range(0, 100, 7):
        (depth,) = holders.prefixes(short_digests(chain(f"{conversation}", 520))).tolist()
        assert 250 <= depth <= 500  # every 32nd block, on average
    assert holders.prefixes(short_digests(chain("unknown", 520))).tolist() == [0]


def test_a_prefix_ends_where_a_block_was_evicted() -> None:
    conversation = chain("a", 100)
    holders = Holders(1)
    holders.put(0, summarise(conversation[:30] + conversation[40:]))
    (depth,) = holders.prefixes(short_digests(conversation[:31])).tolist()
    assert depth == 30
    (depth,) = holders.prefixes(short_digests(conversation)).tolist()
    assert depth <= 40  # of 100 blocks, some are looked at


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300)), min_size=1, max_size=8), st.integers(1, 64))
def test_nothing_is_found_that_is_not_there(seen: list[tuple[int, int]], most: int) -> None:
    holders = Holders(len(seen))
    for replica, (conversation, length) in enumerate(seen):
        holders.put(replica, summarise(chain(f"{conversation}", length), most))
    for asked in range(6):
        found = holders.prefixes(short_digests(chain(f"{asked}", 250)))
        for depth, (conversation, length) in zip(found.tolist(), seen, strict=True):
            assert depth <= (length if conversation == asked else 0)


def test_a_replica_that_reports_again_is_forgotten_first() -> None:
    holders = Holders(2)
    holders.put(0, summarise(chain("a", 50)))
    holders.put(0, summarise(chain("b", 20)))
    assert holders.prefixes(short_digests(chain("a", 50))).tolist() == [0, 0]
    holders.grow(4)
    assert holders.prefixes(short_digests(chain("b", 30))).tolist() == [20, 0, 0, 0]


def test_most_digests_find_a_place() -> None:
    """Buckets have a bound: few digests are left out."""
    draw = random.Random(1)
    found, holders = 0, Holders(1)
    digests = [draw.randbytes(16) for _ in range(2048)]
    holders.put(0, summarise(digests))
    for digest in digests:
        found += int(holders.prefixes(short_digests([digest]))[0])
    assert found >= 2040


def test_statistics_survive_the_wire() -> None:
    seen = ReplicaStatistics(
        number=3,
        status=Status.DEGRADED,
        block_size=16,
        blocks=10,
        free_blocks=4,
        unused_blocks=2,
        slots=8,
        running=2,
        waiting=1,
        waiting_blocks=5,
        inside=3,
        places=20,
        prefill_tokens_per_second=123.5,
        step_seconds=0.25,
        forecast=(Forecast(0.0, 4, 6), Forecast(2.5, 10, 8)),
        summary=PrefixSummary(b"12345678", 2),
        draining=True,
    )
    assert ReplicaStatistics.from_wire(seen.to_wire()) == seen


def test_conversations_are_bounded_and_the_oldest_is_forgotten() -> None:
    found = Conversations(most=2)
    for first in (10, 20, 30):
        found.went((first, first + 1), f"replica {first}")
    assert len(found) == 2
    assert found.find((10, 11, 12)) is None
    assert found.find((30, 31, 32, 33)) == ("replica 30", 2)
    assert found.find(()) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50), st.integers(1, 4))), st.floats(0, 100))
def test_what_was_sent_is_what_no_report_counts(sent: list[tuple[float, int, int]], moment: float) -> None:
    found = SentSince()
    ordered = [Sent(f"{number}", *one) for number, one in enumerate(sorted(sent))]
    for one in ordered:
        found.add(one)
    found.counted_until(moment)
    left = [one for one in ordered if one.at > moment]
    assert (found.blocks, found.answers) == (sum(one.blocks for one in left), sum(one.answers for one in left))


@pytest.mark.parametrize("most", [1, 7, 2048])
def test_a_summary_is_never_larger_than_asked(most: int) -> None:
    assert summarise(chain("a", 5000), most).count <= most
