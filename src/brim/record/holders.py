"""Who is on a device, as notes: a process that comes or goes, and what each holds when that has changed.

In: once a second, the processes and what they hold. Out: notes, few where nothing changes: a figure is repeated once a
minute, so that a ring that forgets still has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from brim.record.entries import Note, NoteKind
from brim.units import MIB

_CHANGE_BYTES = MIB
_REPEAT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """A process on a device."""

    pid: int
    held_bytes: int
    promised_bytes: int = 0  # by its lease; 0: it has none
    name: str = ""  # its role, or its program


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device at one moment."""

    total_bytes: int
    free_bytes: int
    holders: Sequence[DeviceHolder]
    own_pid: int = 0  # of the server, which is no neighbour


class HolderNotes:
    """Compares each moment with the one before."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[float, DeviceHolder]] = {}
        self._device: tuple[float, int] | None = None

    def notes(self, time: float, use: DeviceUse) -> Iterator[Note]:
        others = sum(one.held_bytes for one in use.holders if one.pid != use.own_pid)
        if self._device is None or _is_due(time, self._device[0], use.free_bytes - self._device[1]):
            self._device = time, use.free_bytes
            yield Note(time, NoteKind.DEVICE, 1, use.total_bytes, use.free_bytes, others)
        here = {one.pid: one for one in use.holders}
        for pid in [pid for pid in self._told if pid not in here]:
            gone = self._told.pop(pid)[1]
            yield Note(time, NoteKind.LEFT, pid, gone.held_bytes, text=gone.name)
        for pid, one in here.items():
            before = self._told.get(pid)
            if before is None and pid != use.own_pid:
                yield Note(time, NoteKind.ARRIVED, pid, one.held_bytes, one.promised_bytes, text=one.name)
            if before is None or _is_due(time, before[0], one.held_bytes - before[1].held_bytes):
                self._told[pid] = time, one
                yield Note(time, NoteKind.HOLDER, pid, one.held_bytes, one.promised_bytes, text=one.name)


def _is_due(time: float, told: float, change_bytes: int) -> bool:
    return abs(change_bytes) >= _CHANGE_BYTES or time - told >= _REPEAT_SECONDS
