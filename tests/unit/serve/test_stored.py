"""Stored responses: what is counted is what is held."""

from __future__ import annotations

import sys

from brim.serve.stored import StoredResponse, StoredResponses


def test_the_oldest_give_way_to_bytes_and_to_numbers() -> None:
    stored = StoredResponses(most_bytes=10_000, most_of_one_key=3)
    for number in range(5):
        stored.keep("one", f"r{number}", StoredResponse(b"x" * 1000, b"y" * 500))
    assert [stored.find("one", f"r{number}") is None for number in range(5)] == [True, True, False, False, False]
    stored.keep("two", "large", StoredResponse(b"", b"z" * 9000))
    assert stored.held_bytes == 9000
    assert stored.find("two", "large") is not None
    stored.keep("two", "larger", StoredResponse(b"z", b"z" * 10_000))
    assert stored.find("two", "larger") is None
    assert not stored.delete("one", "large")
    assert stored.delete("two", "large")
    assert stored.held_bytes == 0


def test_what_is_counted_is_what_is_held() -> None:
    kept = StoredResponse("\N{GRINNING FACE}".encode() * 1000, b"[" + b"{}," * 1000 + b"{}]")
    assert kept.size_bytes == 4000 + 3004
    assert sys.getsizeof(kept.response) + sys.getsizeof(kept.items) < kept.size_bytes + 100


def test_an_id_that_comes_again_is_counted_once() -> None:
    stored = StoredResponses(most_bytes=10_000)
    for size in (3000, 2000):
        stored.keep("one", "own", StoredResponse(b"", b"z" * size))
    assert stored.held_bytes == 2000
    assert stored.delete("one", "own")
    assert (stored.held_bytes, stored.find("one", "own")) == (0, None)
