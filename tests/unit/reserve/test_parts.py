"""Who may take how much: worked cases, and that no order of events gives out more than there is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from brim.records.lease import Expected, Lease, LeaseState, SizeWish
from brim.reserve.parts import DeviceNow, DevicePart, available_bytes, late_neighbours, part_of
from tests.unit.reserve.made import holder, sizer

BUDGET = DeviceNow(1000)


def test_a_promise_counts_until_something_is_held_and_then_what_is_held() -> None:
    assert available_bytes([holder(300)], BUDGET) == 700
    assert available_bytes([holder(300, 200)], BUDGET) == 800
    assert available_bytes([replace(holder(300, 200), state=LeaseState.RELEASING)], BUDGET) == 800
    assert available_bytes([holder(300), holder(900, generation=2)], BUDGET) == -200


def test_what_the_driver_counts_is_not_counted_twice() -> None:
    lease = holder(300, 300)
    assert available_bytes([lease], DeviceNow(700, {lease.name: 300})) == 700
    assert available_bytes([lease], DeviceNow(900, {lease.name: 100})) == 700  # two thirds are still to be taken
    assert available_bytes([lease], DeviceNow(500, {lease.name: 500})) == 500  # it took more than it said


def test_one_sizer_takes_what_is_left() -> None:
    assert part_of(sizer(), [], BUDGET) == DevicePart(1000, limited=False)
    assert part_of(sizer(), [holder(300, 200, generation=2)], BUDGET) == DevicePart(800, limited=False)
    assert part_of(sizer(), [holder(2000, 1200, generation=2)], BUDGET) == DevicePart(0, limited=False)


def test_two_sizers_divide_by_fractions_by_size_or_equally() -> None:
    me, you = sizer(), sizer(generation=2)
    assert part_of(me, [you], BUDGET) == DevicePart(500, limited=True)
    assert part_of(me, [replace(you, share=SizeWish(fraction=0.3))], BUDGET) == DevicePart(700, limited=True)
    assert part_of(me, [replace(you, share=SizeWish(bytes=250), promised_bytes=250)], BUDGET) == DevicePart(
        750, limited=False
    )
    assert part_of(replace(me, share=SizeWish(fraction=0.4)), [you], BUDGET) == DevicePart(400, limited=True)
    assert part_of(replace(me, promised_bytes=600), [you], BUDGET) == DevicePart(600, limited=True)


def test_the_second_sizer_gets_the_rest_of_what_the_first_has_decided_or_holds() -> None:
    first = replace(sizer(), promised_bytes=500)
    assert part_of(sizer(generation=2), [first], BUDGET) == DevicePart(500, limited=False)
    held = replace(first, state=LeaseState.HELD, held_bytes=350)
    assert part_of(sizer(generation=2), [held], BUDGET) == DevicePart(650, limited=False)
    half = sizer(SizeWish(fraction=0.9), generation=2)
    assert part_of(half, [held], BUDGET) == DevicePart(650, limited=True)  # a fraction of all, and no more than is left


def test_on_a_gpu_a_part_is_of_the_whole_card_and_not_of_what_is_free() -> None:
    first = replace(sizer(), promised_bytes=500, state=LeaseState.HELD, held_bytes=480, measured=True)
    now = DeviceNow(420, {first.name: 480})  # 100 belong to processes without a lease
    assert part_of(sizer(SizeWish(fraction=0.5), generation=2), [first], now) == DevicePart(420, limited=True)
    assert part_of(sizer(SizeWish(fraction=0.4), generation=2), [first], now) == DevicePart(360, limited=True)


def test_who_is_late() -> None:
    me = sizer(generation=3)
    starting = holder(1)
    assert late_neighbours(me, [starting, holder(1, 1, generation=2)], Expected()) == ("embedder (pid 77)",)
    assert late_neighbours(me, [sizer(), sizer(generation=4)], Expected()) == ("llm (pid 77)",)  # the one before it
    assert late_neighbours(me, [holder(1, 1)], Expected(1, ("embedder",))) == ()
    assert late_neighbours(me, [sizer(generation=4)], Expected(roles=("llm",))) == ()
    assert late_neighbours(me, [holder(1, 1)], Expected(3, ("tower", "embedder", "embedder"))) == (
        "tower (not started)",
        "embedder (not started)",
        "2 more (not started)",
    )
    leaving = replace(holder(1, 1), state=LeaseState.RELEASING)
    assert late_neighbours(me, [leaving], Expected(roles=("embedder",))) == ("embedder (not started)",)


WANTS = st.one_of(st.just(SizeWish()), st.floats(0.05, 0.5).map(lambda part: SizeWish(fraction=part)))
MOVES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 700), st.floats(0, 1)), max_size=40)


@given(shares=st.lists(WANTS, min_size=1, max_size=2), moves=MOVES, total=st.integers(1, 1000))
def test_no_order_of_events_gives_out_more_than_there_is(
    shares: list[SizeWish], moves: list[tuple[int, int, float]], total: int
) -> None:
    """Holders come, hold and go, sizers decide in their order; the claims never exceed the budget."""
    now = DeviceNow(total)
    leases: dict[int, Lease] = {number: sizer(share, generation=number) for number, share in enumerate(shares)}
    for generation, (move, size, part) in enumerate(moves, len(shares)):
        undecided = [lease for lease in leases.values() if lease.sizes and lease.promised_bytes is None]
        chosen = list(leases.values())[size % len(leases)] if leases else None
        if move <= 1 and size <= available_bytes(leases.values(), now):
            leases[generation] = holder(size, generation=generation)
        elif move == 2 and undecided:
            me = min(undecided, key=lambda lease: lease.generation)
            others = [lease for lease in leases.values() if lease is not me]
            decided = part_of(me, others, now).promised_bytes
            leases[me.generation] = replace(me, promised_bytes=decided)
        elif move == 3 and chosen is not None and chosen.promised_bytes is not None:
            held = int(part * chosen.claim_bytes)
            leases[chosen.generation] = replace(chosen, state=LeaseState.HELD, held_bytes=held)
        elif move >= 4 and chosen is not None and not chosen.sizes:
            del leases[chosen.generation]
        assert sum(lease.claim_bytes for lease in leases.values()) <= total


@given(total=st.integers(1, 10**12), given_shares=st.lists(WANTS, min_size=1, max_size=4), held=st.integers(0, 10**12))
def test_sizers_that_are_all_there_get_what_they_asked_for_and_nothing_is_wasted(
    total: int, given_shares: list[SizeWish], held: int
) -> None:
    fractions = [share.fraction or 0.0 for share in given_shares]
    if sum(fractions) > 1 or held > total:
        return
    now, neighbour = DeviceNow(total), holder(held, held, generation=99)
    sizers = [sizer(share, generation=number) for number, share in enumerate(given_shares)]
    for number, me in enumerate(sizers):
        others = [*sizers[:number], *sizers[number + 1 :], neighbour]
        sizers[number] = replace(me, promised_bytes=part_of(me, others, now).promised_bytes)
    parts = [lease.promised_bytes or 0 for lease in sizers]
    room = total - held
    for share, part in zip(given_shares, parts, strict=True):
        if share.fraction is not None:
            assert part == int(share.fraction * room)
    equal = [part for share, part in zip(given_shares, parts, strict=True) if share.fraction is None]
    assert max(equal, default=0) - min(equal, default=0) <= len(equal)  # the last takes what division leaves
    if equal:
        assert sum(parts) == room
