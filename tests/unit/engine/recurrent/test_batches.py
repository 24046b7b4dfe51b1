"""Chunks in batches and pieces: nothing is left out, nothing is mixed, and every bound holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.engine.device.layout import ChunkPlace
from brim.engine.recurrent.batches import ChunkBatch, Pieces, batches

pieces_of = st.builds(Pieces, st.integers(1, 40), st.booleans())


@st.composite
def rows_of_chunks(draw: st.DrawFn) -> list[ChunkPlace]:
    lengths = draw(st.lists(st.sampled_from([1, 1, 1, 2, 5, 16, 17, 40, 41, 90]), max_size=30))
    slots = draw(st.permutations(range(len(lengths))))
    chunks, start = [], draw(st.integers(0, 5))
    for length, slot in zip(lengths, slots, strict=True):
        chunks.append(ChunkPlace(start, length, slot, draw(st.sampled_from([0, 0, 3, 90]))))
        start += length
    return chunks


@given(rows_of_chunks(), pieces_of, st.integers(1, 8))
def test_every_chunk_is_in_one_batch_of_its_kind(chunks: list[ChunkPlace], pieces: Pieces, most_rows: int) -> None:
    found = list(batches(chunks, pieces, most_rows))
    assert sorted(chunk.start for batch in found for chunk in batch.chunks) == [chunk.start for chunk in chunks]
    for batch in found:
        assert {(chunk.length, chunk.context > 0) for chunk in batch.chunks} == {(batch.length, batch.has_past)}
        assert len(batch.chunks) <= most_rows
        longest = max(stop - start for start, stop in pieces.of(batch.length, batch.has_past))
        assert len(batch.chunks) == 1 or len(batch.chunks) * longest <= pieces.tokens


@given(st.integers(1, 200), st.booleans(), pieces_of)
def test_pieces_follow_each_other(length: int, has_past: bool, pieces: Pieces) -> None:
    found = list(pieces.of(length, has_past))
    assert [place for start, stop in found for place in range(start, stop)] == list(range(length))
    sizes = [stop - start for start, stop in found]
    assert max(sizes) <= pieces.tokens + 1
    if pieces.continues and pieces.tokens > 1 and length > 1:
        assert 1 not in sizes  # it would run in the form for generation
    if not pieces.continues:
        assert all(size == 1 for size in sizes[0 if has_past else 1 :])


def test_many_short_prompts_beside_a_long_one_are_a_few_batches() -> None:
    short = [ChunkPlace(number, 1, number, 0) for number in range(255)]
    long = ChunkPlace(255, 7937, 255, 4096)
    found = list(batches([*short, long], Pieces(2048), 64))
    assert [len(batch.chunks) for batch in found] == [64, 64, 64, 63, 1]


def test_slots_and_places_go_chunk_by_chunk() -> None:
    batch = ChunkBatch((ChunkPlace(7, 2, 5, 0), ChunkPlace(3, 2, 1, 0)))
    assert (batch.slots, batch.places) == ([5, 1], [7, 8, 3, 4])
