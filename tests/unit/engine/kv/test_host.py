"""Parts of the arena in host memory: within its bounds, never two in one place, all given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.engine.kv.host import ALIGNMENT, HostCopy, HostRoom, HostSizes


def copy_at(place: int, size: int) -> HostCopy:
    return HostCopy(place, size, tokens=1, reused=0, columns=(range(1),))


@given(total=st.integers(0, 40), actions=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=40))
def test_parts_never_overlap_and_what_is_said_to_fit_does(total: int, actions: list[tuple[bool, int]]) -> None:
    room, held = HostRoom(total), list[HostCopy]()
    for takes, number in actions:
        if takes and number <= room.largest_bytes:
            held.append(copy_at(room.take(number), number))
        elif held:
            room.give_back(held.pop(number % len(held)))
        bytes_held = [byte for copy in held for byte in range(copy.place, copy.place + copy.bytes)]
        assert len(bytes_held) == len(set(bytes_held)) == room.held_bytes
        assert all(0 <= byte < total for byte in bytes_held)
        free = "".join(" " if byte in bytes_held else "x" for byte in range(total))
        assert room.largest_bytes == max(map(len, free.split()), default=0)
        assert room.problems(held) == []


def test_a_part_that_nobody_has_and_a_copy_without_one_are_problems() -> None:
    room = HostRoom(100)
    copy = copy_at(room.take(40), 40)
    assert room.problems([]) == [
        "host memory: 40 bytes are held, and waiting requests have copies of 0 bytes there",
    ]
    room.give_back(copy)
    assert len(room.problems([copy])) == 1


def test_a_copy_takes_its_blocks_and_its_state() -> None:
    sizes = HostSizes(block_bytes=(100, 30), state_bytes=7)
    assert sizes.copy_bytes((range(2, 5), range(4, 5))) == 384
    assert sizes.copy_bytes((range(0), range(0))) == ALIGNMENT
