"""The file of a recording: a header, two places for the start, a ring of steps and a ring of notes.

    0        header: magic, version, sizes, process, checksum
    4 KiB    the start as JSON, twice: the valid one with the higher number counts, so that one can be rewritten
    64 KiB   steps: slots of 128 bytes
    …        notes: slots of 256 bytes

A slot is a sequence number, a body and a checksum over both. Number n is in slot (n - 1) modulo their count: a number
of 0 is an empty slot, and a slot whose checksum does not match was being written when the process ended. How a step
went is written later: the last 8 bytes of its slot, outside the checksum and stored at once, so that a process that
ends at that moment does not take the step with it.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from brim.record.entries import LedgerLine, Note, NoteKind, StartEntry, StepEntry, StepState

MAGIC = b"BRIMREC\n"
VERSION = 1
STEP_SLOTS = 1 << 16
NOTE_SLOTS = 1 << 14
STEP_BYTES = 128
NOTE_BYTES = 256

_HEADER = struct.Struct("<8sIIIIIId")  # magic, version, step slots, step bytes, note slots, note bytes, pid, created
_START = struct.Struct("<QI")  # number, length of the JSON
_CHECKSUM = struct.Struct("<I")
_STEP = struct.Struct("<Qd13I4Q16x")
_OUTCOME = struct.Struct("<II")  # state, microseconds
_NOTE = struct.Struct("<QdHHIqqq")
_NOTE_TEXT = NOTE_BYTES - _NOTE.size - _CHECKSUM.size
_START_PLACES = (4 << 10, 34 << 10)
_START_BYTES = 30 << 10
_RINGS = 64 << 10
_KINDS = tuple(NoteKind)
_STATES = {int(one): one for one in StepState}
_COUNTS = 13  # fields of a step that are counts; sizes follow
_MOST_U32, _MOST_U64, _MOST_I64 = (1 << 32) - 1, (1 << 64) - 1, (1 << 63) - 1
_MOST_SLOTS = 1 << 20  # of a header that can be believed

OUTCOME_OFFSET, OUTCOME_BYTES = _STEP.size + _CHECKSUM.size, _OUTCOME.size
assert OUTCOME_OFFSET + OUTCOME_BYTES == STEP_BYTES
assert OUTCOME_OFFSET % 8 == _RINGS % 8 == STEP_BYTES % 8 == 0  # aligned: one store


class NotARecording(Exception):
    """Why a file cannot be read as a recording."""


@dataclass(frozen=True, slots=True)
class RingPlace:
    """Where the slots of a ring are."""

    offset: int
    slots: int
    slot_bytes: int
    sealed_bytes: int  # of a slot, the checksum included

    def slot(self, number: int) -> int:
        return self.offset + (number - 1) % self.slots * self.slot_bytes

    @property
    def end(self) -> int:
        return self.offset + self.slots * self.slot_bytes


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The sizes of a file, and whose it is."""

    pid: int
    created: float
    step_slots: int = STEP_SLOTS
    note_slots: int = NOTE_SLOTS

    @property
    def steps(self) -> RingPlace:
        return RingPlace(_RINGS, self.step_slots, STEP_BYTES, OUTCOME_OFFSET)

    @property
    def notes(self) -> RingPlace:
        return RingPlace(self.steps.end, self.note_slots, NOTE_BYTES, NOTE_BYTES)

    @property
    def file_bytes(self) -> int:
        return self.notes.end


def pack_header(header: FileHeader) -> bytes:
    return _sealed(
        _HEADER.pack(
            MAGIC,
            VERSION,
            header.step_slots,
            STEP_BYTES,
            header.note_slots,
            NOTE_BYTES,
            header.pid,
            header.created,
        )
    )


def unpack_header(data: bytes) -> FileHeader:
    """From the first bytes of a file. Only the magic and the version have the same place in every version."""
    if data[: len(MAGIC)] != MAGIC:
        raise NotARecording("it is no recording of Brim")
    if len(data) < _HEADER.size + _CHECKSUM.size:
        raise NotARecording("it is cut off in its header")
    _, version, step_slots, step_bytes, note_slots, note_bytes, pid, created = _HEADER.unpack_from(data)
    if version != VERSION:
        raise NotARecording(f"it is a recording of version {version}, and this Brim reads version {VERSION}")
    sizes = (step_bytes, note_bytes) == (STEP_BYTES, NOTE_BYTES)
    if not sizes or not 0 < step_slots <= _MOST_SLOTS or not 0 < note_slots <= _MOST_SLOTS:
        raise NotARecording("its header is damaged")
    if not _is_whole(data[: _HEADER.size + _CHECKSUM.size]):
        raise NotARecording("its header is damaged")
    return FileHeader(pid, created, step_slots, note_slots)


# -- steps and notes -----------------------------------------------------------------------------------------------


def pack_step(number: int, step: StepEntry) -> bytes:
    time, state, duration, *counts = step
    try:
        body = _STEP.pack(number, time, *counts)
    except struct.error:  # a figure that nothing should have: the nearest that the file can hold
        small = [_within(one, _MOST_U32) for one in counts[:_COUNTS]]
        body = _STEP.pack(number, time, *small, *(_within(one, _MOST_U64) for one in counts[_COUNTS:]))
    return body + _CHECKSUM.pack(zlib.crc32(body)) + pack_outcome(state, duration)


def pack_outcome(state: int, duration_us: int) -> bytes:
    return _OUTCOME.pack(state, min(duration_us, _MOST_U32))


def unpack_step(slot: bytes) -> tuple[int, StepEntry]:
    number, time, *counts = _STEP.unpack_from(slot)
    state, duration = _OUTCOME.unpack_from(slot, OUTCOME_OFFSET)
    return number, StepEntry(time, _STATES.get(state, StepState.PLANNED), duration, *counts)


def pack_note(number: int, note: Note) -> bytes:
    text = note.text.encode("utf-8", "replace")[:_NOTE_TEXT]
    sizes = (max(-_MOST_I64, min(_MOST_I64, size)) for size in (note.first, note.second, note.third))
    count = _within(note.count, _MOST_U32)
    head = _NOTE.pack(number, note.time, _KINDS.index(note.kind), len(text), count, *sizes)
    return _sealed(head + text.ljust(_NOTE_TEXT, b"\0"))


def unpack_note(slot: bytes) -> tuple[int, Note]:
    number, time, kind, length, count, first, second, third = _NOTE.unpack_from(slot)
    text = slot[_NOTE.size : _NOTE.size + min(length, _NOTE_TEXT)].decode("utf-8", "ignore")
    found = _KINDS[kind] if kind < len(_KINDS) else NoteKind.LOG
    return number, Note(time, found, count, first, second, third, text)


def slot_number(sealed: bytes) -> int | None:
    """The number of a slot without its outcome, 0 of one that was never written; None where it is torn."""
    if not sealed.strip(b"\0"):
        return 0
    return int.from_bytes(sealed[:8], "little") if _is_whole(sealed) else None


def _within(value: int, most: int) -> int:
    return max(0, min(most, int(value)))


# -- the start -----------------------------------------------------------------------------------------------------


def pack_start(number: int, start: StartEntry) -> tuple[int, bytes]:
    """(Where it goes, the bytes). Settings and lines that do not fit are left out, the last first."""
    body = start.to_json()
    room = _START_BYTES - _START.size - _CHECKSUM.size
    written = json.dumps(body).encode()
    while len(written) > room and (body["settings"] or body["ledger"]):
        if body["settings"]:
            body["settings"].popitem()
        else:
            body["ledger"].pop()
        written = json.dumps(body).encode()
    return _START_PLACES[number % 2], _sealed(_START.pack(number, len(written)) + written[:room])


def unpack_start(data: bytes) -> StartEntry | None:
    """From the first 64 KiB of a file; None where it was never written."""
    found = [one for place in _START_PLACES if (one := _start_at(data, place)) is not None]
    return max(found, key=lambda one: one[0])[1] if found else None


def _start_at(data: bytes, place: int) -> tuple[int, StartEntry] | None:
    if len(data) < place + _START.size:
        return None
    number, length = _START.unpack_from(data, place)
    whole = data[place : place + _START.size + length + _CHECKSUM.size]
    if not number or length > _START_BYTES or not _is_whole(whole):
        return None
    try:
        return number, _start_from(json.loads(whole[_START.size : -_CHECKSUM.size]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _start_from(body: dict[str, Any]) -> StartEntry:
    return StartEntry(
        engine=str(body["engine"]),
        version=str(body["version"]),
        model=str(body["model"]),
        device=str(body["device"]),
        total_bytes=int(body["total_bytes"]),
        kv_tokens=int(body["kv_tokens"]),
        kv_bytes=int(body["kv_bytes"]),
        settings=tuple((str(name), str(value)) for name, value in body["settings"].items()),
        ledger=tuple(LedgerLine(str(name), _size(said), _size(seen)) for name, said, seen in body["ledger"]),
    )


def _size(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _sealed(body: bytes) -> bytes:
    return body + _CHECKSUM.pack(zlib.crc32(body))


def _is_whole(sealed: bytes) -> bool:
    """Whether the checksum matches."""
    if len(sealed) <= _CHECKSUM.size:
        return False
    body = sealed[: -_CHECKSUM.size]
    return sealed[-_CHECKSUM.size :] == _CHECKSUM.pack(zlib.crc32(body))
