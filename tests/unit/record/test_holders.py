"""Who is on a device, as notes."""

from __future__ import annotations

from brim.record.entries import Note, NoteKind
from brim.record.holders import DeviceHolder, DeviceUse, HolderNotes
from brim.units import GIB, MIB


def test_neighbours_come_grow_and_go() -> None:
    notes = HolderNotes()
    own, other = DeviceHolder(7, 4 * GIB, name="llm"), DeviceHolder(9, GIB, GIB, "encoder")
    told = [
        list(notes.notes(time, DeviceUse(10 * GIB, free, holders, own_pid=7)))
        for time, free, holders in (
            (1.0, 6 * GIB, (own,)),
            (2.0, 6 * GIB, (own,)),
            (3.0, 5 * GIB, (own, other)),
            (4.0, 5 * GIB - MIB // 2, (own, DeviceHolder(9, GIB + MIB // 2, GIB, "encoder"))),
            (5.0, 6 * GIB, (own,)),
            (65.5, 6 * GIB, (own,)),
        )
    ]
    assert told == [
        [Note(1.0, NoteKind.DEVICE, 1, 10 * GIB, 6 * GIB, 0), Note(1.0, NoteKind.HOLDER, 7, 4 * GIB, 0, text="llm")],
        [],
        [
            Note(3.0, NoteKind.DEVICE, 1, 10 * GIB, 5 * GIB, GIB),
            Note(3.0, NoteKind.ARRIVED, 9, GIB, GIB, text="encoder"),
            Note(3.0, NoteKind.HOLDER, 9, GIB, GIB, text="encoder"),
        ],
        [],
        [Note(5.0, NoteKind.DEVICE, 1, 10 * GIB, 6 * GIB, 0), Note(5.0, NoteKind.LEFT, 9, GIB, text="encoder")],
        [Note(65.5, NoteKind.DEVICE, 1, 10 * GIB, 6 * GIB, 0), Note(65.5, NoteKind.HOLDER, 7, 4 * GIB, 0, text="llm")],
    ]
