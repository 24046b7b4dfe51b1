"""What conversations keep between their turns: at most so much, the quietest given up first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from brim.engine.kv.blocks import BlockPool
from brim.engine.kv.sessions import MOST_SESSIONS, Sessions

NAMES = st.sampled_from(["a", "b", "c", "d"])
CONTENT = st.lists(st.integers(0, 9), max_size=6, unique=True).map(lambda found: [bytes([one]) for one in found])


def filled(blocks: int) -> BlockPool:
    """A pool in which everything is cached, the content of block n being n."""
    pool = BlockPool(blocks)
    for block in sorted(pool.take() for _ in range(blocks)):
        pool.publish(block, bytes([block]))
        pool.release(block)
    return pool


def test_sessions_outlive_plain_prefixes() -> None:
    pool = filled(4)
    sessions = Sessions([pool], most_blocks=2)
    sessions.keep("chat", [bytes([1]), bytes([2])])
    assert [pool.take() for _ in range(2)] == [3, 4]
    assert pool.find(bytes([1])) == 1
    assert [pool.take() for _ in range(2)] == [1, 2]  # running requests come before any conversation


def test_the_quietest_is_given_up_first() -> None:
    sessions = Sessions([filled(6)], most_blocks=4)
    sessions.keep("first", [b"1", b"2"])
    sessions.keep("second", [b"3", b"4"])
    sessions.keep("first", [b"1", b"2"])
    sessions.keep("third", [b"5"])
    assert (len(sessions), sessions.blocks) == (2, 3)
    sessions.forget("first")
    assert (len(sessions), sessions.blocks) == (1, 1)


def test_so_many_sessions_are_kept_however_short() -> None:
    """Those that fill no block, and those that have all their blocks in common with others, count too."""
    pool = filled(6)
    sessions = Sessions([pool], most_blocks=4)
    for number in range(3000):
        sessions.keep(f"empty {number}", [])
        sessions.keep(f"alike {number}", [bytes([1])])
    assert len(sessions) == MOST_SESSIONS
    assert sessions.blocks == 1
    few = Sessions([pool], most_blocks=4, most_sessions=2)
    for name in ("a", "b", "a", "c"):
        few.keep(name, [bytes([1]), name.encode()])
    few.forget("b")
    assert (len(few), few.blocks) == (2, 3)  # b was the quietest, and was forgotten before


@settings(max_examples=200, deadline=None)
@given(turns=st.lists(st.tuples(NAMES, CONTENT | st.none()), max_size=20), most=st.integers(0, 8))
def test_whatever_comes_it_stays_within_its_blocks(turns: list[tuple[str, list[bytes] | None]], most: int) -> None:
    pool = filled(9)
    sessions = Sessions([pool], most)
    for name, content in turns:
        if content is None:
            sessions.forget(name)
        else:
            sessions.keep(name, content)
        assert sessions.blocks <= most
    for name in ("a", "b", "c", "d"):
        sessions.forget(name)
    assert sessions.blocks == 0
    assert not pool._favourites
    assert len({pool.take() for _ in range(9)}) == 9
