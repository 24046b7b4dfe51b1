"""The worst batches: no batch that serving may make has more of anything."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as some

from brim.engine.pooling.worst import worst_batches


def test_the_longest_alone_and_full_batches_of_every_kind() -> None:
    shapes = [(one.sequences, one.tokens // one.sequences) for one in worst_batches(longest=100, tokens=350, rows=16)]
    assert shapes == [(1, 100), (3, 100), (4, 88), (16, 22)]


@settings(max_examples=200, deadline=None)
@given(some.integers(1, 64), some.integers(0, 400), some.integers(1, 16), some.data())
def test_a_batch_within_the_bounds_takes_no_more_than_a_worst_one(
    longest: int, more: int, rows: int, data: some.DataObject
) -> None:
    tokens = longest + more
    count = data.draw(some.integers(1, rows))
    length = data.draw(some.integers(1, longest))
    if count > 1 and count * length > tokens:
        return
    worst = [(one.sequences, one.tokens // one.sequences) for one in worst_batches(longest, tokens, rows)]
    for taken in (lambda one, size: one * size**2, lambda one, size: one * size, lambda one, size: one):
        assert taken(count, length) <= max(taken(*shape) for shape in worst)  # masks, tokens, rows
