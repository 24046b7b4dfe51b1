"""Features in rows of a fixed piece of memory."""

from __future__ import annotations

import random
from itertools import pairwise

from brim.engine.encoders.feature_cache import FeatureCache


def test_a_part_is_found_again_and_the_oldest_goes_first() -> None:
    cache = FeatureCache(10)
    assert cache.take([("a", 4), ("b", 4)]) == ["a", "b"]
    for key in ("a", "b"):
        entry = cache.find(key)
        assert entry is not None
        entry.ready = True
        cache.unpin(key)
    assert cache.take([("a", 4)]) == []  # now the newest
    assert cache.take([("c", 4)]) == ["c"]
    assert cache.find("b") is None
    assert cache.find("a") is not None


def test_all_parts_of_a_request_are_placed_or_none() -> None:
    cache = FeatureCache(10)
    assert cache.take([("a", 6)]) == ["a"]
    assert cache.take([("a", 6), ("b", 3), ("c", 3)]) is None
    assert len(cache) == 1
    cache.unpin("a")  # not ready: of no use to anybody
    assert len(cache) == 0
    assert cache.take([("b", 5), ("b", 5), ("c", 5)]) == ["b", "c"]


def test_a_part_that_is_kept_in_the_middle_does_not_shut_out_one_that_fits_beside_it() -> None:
    cache = FeatureCache(8)
    for key, rows in (("a", 3), ("b", 2), ("c", 3)):
        cache.take([(key, rows)])
        entry = cache.find(key)
        assert entry is not None
        entry.ready = True
        cache.unpin(key)
    assert cache.take([("b", 2), ("d", 6)]) == ["b", "d"]  # b is encoded again: it had no 6 rows at one side of it
    assert cache.pinned_rows == 8


def kept(cache: FeatureCache, *parts: tuple[str, int]) -> None:
    """Entries that could be found again, the oldest first."""
    for key, rows in parts:
        assert cache.take([(key, rows)]) == [key]
        entry = cache.find(key)
        assert entry is not None
        entry.ready = True
        cache.unpin(key)


def test_only_what_lies_in_the_new_place_is_dropped() -> None:
    """The oldest has too few rows and no gap beside it: dropping it would not have helped."""
    cache = FeatureCache(12)
    kept(cache, ("old", 2), ("middle", 4), ("new", 4))
    cache.take([("new", 4)])
    assert cache.take([("other", 4)]) == ["other"]
    assert [key for key in ("old", "middle", "new") if cache.find(key)] == ["old", "new"]


def test_nothing_is_dropped_for_what_has_no_place() -> None:
    cache = FeatureCache(12)
    kept(cache, ("a", 4), ("b", 4), ("c", 4))
    cache.take([("b", 4)])
    assert cache.take([("large", 6)]) is None
    assert cache.take([("d", 4), ("e", 4), ("f", 4)]) is None
    assert len(cache) == 3


def test_rows_never_overlap_and_pinned_ones_stay() -> None:
    chance = random.Random(7)
    cache, pinned = FeatureCache(40), []
    for _ in range(2000):
        if pinned and chance.random() < 0.5:
            for key in pinned.pop(chance.randrange(len(pinned))):
                cache.unpin(key)
        else:
            wanted = [(key, 1 + key % 13) for key in chance.sample(range(30), chance.randint(1, 3))]
            new = cache.take(wanted)
            if new is not None:
                pinned.append([key for key, _ in wanted])
                for key in new:
                    entry = cache.find(key)
                    assert entry is not None
                    entry.ready = chance.random() < 0.8
        spans = sorted((entry.start, entry.start + entry.rows) for entry in cache._entries.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert not spans or spans[-1][1] <= cache.rows
        assert all(cache.find(key) is not None for keys in pinned for key in keys)
    for keys in pinned:
        for key in keys:
            cache.unpin(key)
    assert cache.pinned_rows == 0
    assert cache.take([("all", 40)]) == ["all"]
