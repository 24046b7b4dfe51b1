"""The future of a batch, against counting it out step by step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.guard.future import NEVER, Claim, Future

POOLS = 2


@st.composite
def claims(draw: st.DrawFn) -> Claim:
    length = draw(st.integers(1, 30))
    last = draw(st.one_of(st.integers(0, 40), st.just(NEVER)))
    shared = draw(st.integers(0, 3))
    most = (draw(st.integers(shared, 12)) + shared, draw(st.integers(1, 4)))
    return Claim(length + shared * 4, last, most, (shared, 0))


def counted_out(
    batch: list[Claim], claim: Claim, size: int, lent: int, returned: int, always: tuple[int, ...]
) -> tuple[int, ...]:
    """The peak until the claim ends, by looking at every step in which anything is different."""
    steps = [step for step in (*range(42), NEVER) if step <= claim.last]
    peaks = []
    for pool in range(POOLS):
        extra = [lent if pool == 0 and step > returned else 0 for step in steps]
        held = [sum(one.held(step, size)[pool] for one in (*batch, claim)) for step in steps]
        peaks.append(always[pool] + max(a + b for a, b in zip(held, extra, strict=True)))
    return tuple(peaks)


@given(
    batch=st.lists(claims(), max_size=8),
    gone=st.sets(st.integers(0, 7)),
    claim=claims(),
    size=st.sampled_from([1, 2, 4]),
    lent=st.integers(0, 2),
    returned=st.one_of(st.integers(0, 40), st.just(NEVER)),
    always=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_the_peak_is_that_of_every_step_counted_out(
    batch: list[Claim], gone: set[int], claim: Claim, size: int, lent: int, returned: int, always: tuple[int, int]
) -> None:
    future = Future(POOLS, size, room=2)
    future.always = always
    for number, one in enumerate(batch):
        future.add(number, one)
    for number in gone & set(range(len(batch))):
        future.remove(number)
    left = {number: one for number, one in enumerate(batch) if number not in gone}
    expected = counted_out(list(left.values()), claim, size, lent, returned, always)
    assert future.peaks_with(claim, lent, returned) == expected
    fresh = Future(POOLS, size)
    fresh.always = always
    fresh.replace_all(dict(left))
    assert fresh.peaks_with(claim, lent, returned) == expected
    assert (len(fresh), len(future)) == (len(left), len(left))


def test_what_ends_first_makes_room_for_what_grows_later() -> None:
    """Two of ten blocks each at their ends, and the first has gone when the second gets there."""
    future = Future(1, 16)
    future.add("first", Claim(offset=100, last=50, most=(10,), shared=(0,)))
    second = Claim(offset=10, last=150, most=(10,), shared=(0,))
    # In step 50: 150 and 60 tokens. In step 150: 160 tokens, alone.
    assert future.peaks_with(second) == (10 + 4,)


def test_claims_that_should_have_ended_are_told() -> None:
    future = Future(1, 16)
    for name, last in (("late", 9), ("early", 3), ("never", NEVER)):
        future.add(name, Claim(40, last, (2,), (0,)))
    assert future.ended_before(3) == []
    assert future.ended_before(4) == ["early"]
    assert future.ended_before(10) == ["early", "late"]
    assert future.get("late") == Claim(40, 9, (2,), (0,))


@given(changes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 4)), max_size=20))
def test_finals_are_the_blocks_of_all_claims_at_their_most(changes: list[tuple[int, int, int]]) -> None:
    future, there = Future(1, 4), dict[int, int]()
    for key, most, shared in changes:
        if key in there:
            future.remove(key)
            del there[key]
        else:
            future.add(key, Claim(0, most, (most + shared,), (shared,)))
            there[key] = most
        assert future.finals() == (sum(there.values()),)
    future.replace_all({"one": Claim(0, 3, (7,), (2,))})
    assert future.finals() == (5,)
