"""Which inputs make the next batch."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as some

from brim.engine.pooling.queue import InputQueue
from brim.guard.shares import ClientShare

ADA, BOB = ClientShare("ada"), ClientShare("bob")


def lengths(batch: tuple) -> list[int]:
    return [one.length for one in batch]


def test_the_longest_of_a_request_come_first_and_padding_counts() -> None:
    queue = InputQueue(most_rows=8)
    queue.add("a", [3, 10, 8, 9, 2], ADA)
    assert lengths(queue.take(30)) == [10, 9, 8]  # three rows of ten; a fourth would be forty
    assert lengths(queue.take(30)) == [3, 2]
    assert queue.take(30) == ()


def test_an_input_that_is_less_than_half_as_long_waits_for_the_next_batch() -> None:
    queue = InputQueue(most_rows=8)
    queue.add("a", [10, 5, 4], ADA)
    assert lengths(queue.take(100)) == [10, 5]
    assert lengths(queue.take(100)) == [4]


def test_one_longer_than_the_bound_is_a_batch_of_its_own() -> None:
    queue = InputQueue(most_rows=8)
    queue.add("a", [50, 40], ADA)
    assert lengths(queue.take(10)) == [50]


def test_a_request_of_many_inputs_does_not_keep_another_waiting() -> None:
    queue = InputQueue(most_rows=4)
    queue.add("many", [8] * 2048, ADA)
    queue.take(32)
    queue.add("few", [8, 8], ADA)  # of the same client
    queue.add("one", [8], BOB)
    batch = queue.take(32)
    assert {one.request_id for one in batch} >= {"few", "one"}
    assert {one.request_id for one in (*batch, *queue.take(32))} == {"many", "few", "one"}
    assert len([one for one in (*batch, *queue.take(32)) if one.request_id == "one"]) == 1


def test_clients_have_equal_parts_of_the_batches_while_both_want_some() -> None:
    queue = InputQueue(most_rows=4)
    queue.add("a", [8] * 100, ADA)
    queue.add("b", [8] * 100, BOB)
    taken = Counter(one.request_id for _ in range(20) for one in queue.take(32))
    assert taken == {"a": 40, "b": 40}


def test_a_client_of_a_larger_weight_has_more() -> None:
    queue = InputQueue(most_rows=4)
    queue.add("a", [8] * 200, ClientShare("ada", 3.0))
    queue.add("b", [8] * 200, BOB)
    taken = Counter(one.request_id for _ in range(20) for one in queue.take(32))
    assert taken == {"a": 60, "b": 20}


def test_a_batch_that_failed_waits_again_and_was_not_served() -> None:
    queue = InputQueue(most_rows=4)
    queue.add("a", [8, 7], ADA)
    batch = queue.take(32)
    queue.put_back(batch)
    assert queue.waiting({("a", 0), ("a", 1), ("b", 0)}) == batch[::-1]
    assert queue.take(32, only={("a", 1)}) == batch[1:]
    assert queue.take(32) == batch[:1]


def test_a_request_that_was_cancelled_leaves_nothing() -> None:
    queue = InputQueue(most_rows=4)
    queue.add("a", [8] * 9, ADA)
    batch = queue.take(32)
    queue.remove("a")
    queue.put_back(batch)
    assert len(queue) == 0
    assert queue.take(32) == ()


@settings(max_examples=60, deadline=None)
@given(some.lists(some.lists(some.integers(1, 40), min_size=1, max_size=12), max_size=6), some.integers(1, 90))
def test_every_input_is_in_one_batch_and_every_batch_within_its_bounds(requests: list[list[int]], tokens: int) -> None:
    queue = InputQueue(most_rows=5)
    for number, one in enumerate(requests):
        queue.add(str(number), one, ClientShare(str(number % 2)))
    seen = []
    while batch := queue.take(tokens):
        longest = max(lengths(batch))
        assert len(batch) <= 5
        assert len(batch) == 1 or len(batch) * longest <= tokens
        assert min(lengths(batch)) * 2 >= longest  # less than half is padding
        seen += [one.key for one in batch]
    assert sorted(seen) == sorted(
        (str(number), place) for number, one in enumerate(requests) for place in range(len(one))
    )
