"""Who gives way in a full queue, and at what level a share begins that comes back."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from brim.guard.shares import EVERYBODY, ClientShare, Turns, displaced, fair_places


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    share: ClientShare
    places: int
    waiting: bool = True


SHARES = [ClientShare("a"), ClientShare("b"), ClientShare("c", 3.0)]
requests = st.lists(
    st.builds(Request, st.sampled_from(SHARES), st.integers(1, 8), st.booleans()), min_size=1, max_size=30
)


def places_of(found: list[Request], share: ClientShare) -> int:
    return sum(one.places for one in found if one.share == share)


@given(
    holders=requests,
    share=st.sampled_from([*SHARES, ClientShare("new"), ClientShare("heavy", 10.0)]),
    wanted=st.integers(1, 8),
)
def test_who_gives_way_waits_and_is_above_its_part_and_the_newcomer_stays_within_its_own(
    holders: list[Request], share: ClientShare, wanted: int
) -> None:
    places = sum(one.places for one in holders)  # it is full
    leaving = displaced(share, wanted, holders, places)
    weights = {one.share.name: one.share.weight for one in holders}
    own = fair_places(share, weights, places)
    if places_of(holders, share) + wanted > own:
        assert leaving == []
        return
    weights[share.name] = share.weight
    left = list(holders)
    for one in leaving:
        assert one.waiting
        assert places_of(left, one.share) > fair_places(one.share, weights, places)
        newest = [other for other in left if other.share == one.share and other.waiting][-1]
        assert one is newest
        left.remove(one)
    if leaving:
        assert sum(one.places for one in left) + wanted <= places
        assert sum(one.places for one in left) + leaving[-1].places + wanted > places, "none too many"


def test_one_client_alone_makes_nobody_give_way() -> None:
    assert displaced(EVERYBODY, 1, [Request(EVERYBODY, 8)] * 5, 40) == []


def test_a_newcomer_gets_the_place_of_the_newest_of_who_has_most() -> None:
    many = [Request(SHARES[0], 8) for _ in range(30)]
    few = [Request(SHARES[1], 1) for _ in range(10)]
    assert displaced(ClientShare("new"), 1, [*many, *few], 250) == [many[-1]]


def test_answers_that_have_begun_do_not_give_way() -> None:
    running = [Request(SHARES[0], 8, waiting=False) for _ in range(30)]
    assert displaced(ClientShare("new"), 1, running, 240) == []


def test_a_share_that_was_away_begins_at_the_level_of_those_that_wait() -> None:
    turns = Turns()
    here, away = turns.enter(ClientShare("here")), turns.enter(ClientShare("away"))
    turns.begins_to_wait(here)
    for _ in range(10):
        turns.start(here, 100, [here])
    turns.begins_to_wait(away)
    assert away.served == here.served == 1000, "the past is not a claim"


def test_a_share_that_was_served_more_than_others_waits_for_them() -> None:
    turns = Turns()
    much, little = turns.enter(ClientShare("much")), turns.enter(ClientShare("little"))
    for account in (much, little):
        turns.begins_to_wait(account)
    turns.start(much, 1000, [little])
    turns.begins_to_wait(much)
    assert (much.served, little.served) == (1000, 0)
    assert turns.level == 500, "by then both would have had half of it"
