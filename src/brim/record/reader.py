"""Reads a recording, while it is written or afterwards, whole or cut: what can be read, and how much is torn."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from brim.errors import InvalidRequest
from brim.record.entries import Recorded
from brim.record.layout import (
    MAGIC,
    NotARecording,
    RingPlace,
    slot_number,
    unpack_header,
    unpack_note,
    unpack_start,
    unpack_step,
)

Entry = TypeVar("Entry")
_HEAD_BYTES = 64 << 10


def is_recording(head: bytes) -> bool:
    """By the first bytes of a file, whatever its version."""
    return head.startswith(MAGIC)


def read_recording(path: Path) -> Recorded:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data)
    except NotARecording as error:
        raise InvalidRequest(f"'{path}': {error}") from None
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise InvalidRequest(f"'{path}': cannot be read as a recording ({error})") from None


def unpacked(data: bytes, name: str) -> Recorded:
    """A recording that was compressed or sent."""
    try:
        return _read(data)
    except NotARecording as error:
        raise InvalidRequest(f"'{name}': {error}") from None


def _read(data: mmap.mmap | bytes) -> Recorded:
    head = data[:_HEAD_BYTES]
    header = unpack_header(head)
    steps, torn_steps = _ring(data, header.steps, unpack_step)
    notes, torn_notes = _ring(data, header.notes, unpack_note)
    first = steps[0][0] if steps else 1
    return Recorded(
        pid=header.pid,
        created=header.created,
        start=unpack_start(head),
        steps=tuple(step for _, step in steps),
        notes=tuple(note for _, note in notes),
        lost_steps=first - 1,
        torn=torn_steps + torn_notes,
        truncated=len(data) < header.file_bytes,
    )


def _ring(
    data: mmap.mmap | bytes, place: RingPlace, unpack: Callable[[bytes], tuple[int, Entry]]
) -> tuple[list[tuple[int, Entry]], int]:
    """The entries in the order of their numbers, and how many slots are torn. A number in a wrong slot is torn too."""
    found: list[tuple[int, Entry]] = []
    torn = 0
    for index, slot in enumerate(_slots(data, place)):
        number = slot_number(slot[: place.sealed_bytes])
        if number is None or (number and (number - 1) % place.slots != index):
            torn += 1
        elif number:
            found.append(unpack(slot))
    found.sort(key=lambda one: one[0])
    return found, torn


def _slots(data: mmap.mmap | bytes, place: RingPlace) -> Iterator[bytes]:
    for start in range(place.offset, min(place.end, len(data)), place.slot_bytes):
        slot = data[start : start + place.slot_bytes]
        if len(slot) == place.slot_bytes:
            yield slot
