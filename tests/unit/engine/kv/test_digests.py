"""Digests of blocks: what images show is in them, each looked at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brim.engine.kv.digests import extend_digests


class Counted(Sequence[tuple[int, bytes]]):
    """Marks, with the looks at them counted."""

    def __init__(self, marks: list[tuple[int, bytes]]) -> None:
        self.marks = marks
        self.looks = 0

    def __len__(self) -> int:
        return len(self.marks)

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        self.looks += 1
        return self.marks[number]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for one in self.marks:
            self.looks += 1
            yield one


def test_marks_are_looked_at_a_few_times_each_and_not_for_every_block() -> None:
    marks = Counted([(place, bytes([place % 251])) for place in range(3, 4096, 8)])  # 512 images
    extend_digests([], [7] * 4096, 4, b"", marks)
    assert marks.looks < 6 * 512


def test_a_mark_changes_its_block_and_all_behind_it_however_the_text_has_grown() -> None:
    plain: list[bytes] = []
    extend_digests(plain, [7] * 24, 4, b"")
    marks = ((5, b"cat"), (6, b"dog"), (16, b"cow"))
    at_once: list[bytes] = []
    extend_digests(at_once, [7] * 24, 4, b"", marks)
    assert [one == other for one, other in zip(at_once, plain, strict=True)] == [True] + [False] * 5
    for length in range(25):
        grown: list[bytes] = []
        extend_digests(grown, [7] * length, 4, b"", marks)
        extend_digests(grown, [7] * 24, 4, b"", marks)
        assert grown == at_once
    for changed in range(3):
        others = tuple((place, b"ant" if number == changed else one) for number, (place, one) in enumerate(marks))
        found: list[bytes] = []
        extend_digests(found, [7] * 24, 4, b"", others)
        first = marks[changed][0] // 4
        assert found[:first] == at_once[:first]
        assert not set(found[first:]) & set(at_once)
