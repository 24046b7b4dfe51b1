"""The host memory that keeps the blocks of preempted requests, and the copies to it and back.

In: orders that the ledger carries (`brim.engine.kv.host`), the tensors of the pool, the recurrent states. The arena is
mapped once, outside any budget of a device, and given back by `close`; on CUDA it is pinned. A copy holds the rows of
every layer after each other: all blocks of the first, then of the next, and the states of its slot at last.

Copies are queued on the stream of the steps, which keeps them in order with whatever writes to the blocks and to the
arena; nothing waits for them, and no event is needed, since only the device looks at the arena. On CUDA rows are
gathered through a small buffer of the device that is made with the arena, so that a copy is a few large transfers. A
copy allocates nothing but the numbers of its blocks.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from brim.engine.device.staging import Staging
from brim.engine.kv.host import CopyBack, CopyOut
from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.tensors import KvTensors
from brim.engine.recurrent.states import RecurrentStates
from brim.errors import DeviceError
from brim.units import MIB, format_bytes, round_up

WORD = 8  # bytes: rows are copied as integers of this size, whatever their type
GATHERED_BYTES = 8 * MIB  # of the device's buffer, at least
_MEASURED_BYTES = 8 * MIB
_TRIES = 4  # of a measurement: the first one touches the pages


class HostMemory:
    """An arena of host memory."""

    def __init__(self, total_bytes: int, device: torch.device, row_bytes: int) -> None:
        """`row_bytes`: the most that a block of one layer takes."""
        self.bytes = round_up(total_bytes, mmap.PAGESIZE)
        self._device = device
        self._arena = _mapped(self.bytes)
        self._pinned = False
        self._gathered: torch.Tensor | None = None
        if device.type == "cuda":
            self._pin()
            self._gathered = torch.empty(max(GATHERED_BYTES, row_bytes) // WORD, dtype=torch.int64, device=device)

    def _pin(self) -> None:
        """Pin it where it is: torch's own pinned memory is rounded up to a power of two, and kept when it is freed."""
        code = torch.cuda.cudart().cudaHostRegister(self._arena.data_ptr(), self.bytes, 0)  # type: ignore[no-untyped-call]
        if int(code) != 0:
            raise DeviceError(f"{format_bytes(self.bytes)} of host memory could not be pinned (CUDA error {int(code)})")
        self._pinned = True

    def close(self) -> None:
        """Give the arena back. Copies on their way are waited for."""
        if self._pinned:
            torch.cuda.synchronize(self._device)
            torch.cuda.cudart().cudaHostUnregister(self._arena.data_ptr())  # type: ignore[no-untyped-call]
            self._pinned = False
        self._arena = torch.empty(0, dtype=torch.uint8)
        self._gathered = None

    # -- copies --------------------------------------------------------------------------------------------------

    def follow(self, ledger: KvLedger, kv: KvTensors, states: RecurrentStates | None, staging: Staging) -> None:
        """Queue all copies that a ledger has noted. One to the host is taken out when it has been queued."""
        while ledger.outgoing:
            order = next(iter(ledger.outgoing.values()))
            self._copy_out(order, kv, states, staging)
            del ledger.outgoing[order.copy]
        for back in ledger.returning.values():
            self._copy_back(back, kv, states, staging)

    def _copy_out(self, order: CopyOut, kv: KvTensors, states: RecurrentStates | None, staging: Staging) -> None:
        place = order.copy.place
        for group, blocks in enumerate(order.blocks):
            index = _sent(blocks, staging) if blocks else None
            for rows in kv.rows_of(group):
                end = place + len(blocks) * _row_bytes(rows)
                if index is not None:
                    self._gather(rows, index, self._part(place, end).view(torch.int64).view(len(blocks), -1))
                place = end
        for state, part in self._states_in(place, order.slot, states):
            part.copy_(state, non_blocking=True)

    def _copy_back(self, order: CopyBack, kv: KvTensors, states: RecurrentStates | None, staging: Staging) -> None:
        place = order.copy.place
        for group, (columns, move) in enumerate(zip(order.copy.columns, order.moves, strict=True)):
            index = _sent(move.blocks, staging) if move.blocks else None
            for rows in kv.rows_of(group):
                end = place + len(columns) * _row_bytes(rows)
                if index is not None:
                    kept = self._part(place, end).view(torch.int64).view(len(columns), -1)
                    self._scatter(kept, move.numbers, rows, index)
                place = end
        for state, part in self._states_in(place, order.slot, states):
            state.copy_(part, non_blocking=True)

    def _gather(self, rows: torch.Tensor, index: torch.Tensor, kept: torch.Tensor) -> None:
        if self._gathered is None:
            torch.index_select(rows, 0, index, out=kept)
            return
        for start, end in self._pieces(len(index), rows.shape[1]):
            piece = self._gathered[: (end - start) * rows.shape[1]].view(end - start, -1)
            torch.index_select(rows, 0, index[start:end], out=piece)
            kept[start:end].copy_(piece, non_blocking=True)

    def _scatter(self, kept: torch.Tensor, numbers: Sequence[int], rows: torch.Tensor, index: torch.Tensor) -> None:
        """Write rows of a copy to the blocks of the pool."""
        for start, end in _runs(numbers):
            part = kept[numbers[start] : numbers[start] + end - start]
            if self._gathered is None:
                rows.index_copy_(0, index[start:end], part)
                continue
            for first, last in self._pieces(end - start, rows.shape[1]):
                piece = self._gathered[: (last - first) * rows.shape[1]].view(last - first, -1)
                piece.copy_(part[first:last], non_blocking=True)
                rows.index_copy_(0, index[start + first : start + last], piece)

    def _pieces(self, count: int, row_words: int) -> Iterator[tuple[int, int]]:
        """Cut so many rows into what the device's buffer holds."""
        assert self._gathered is not None
        most = self._gathered.numel() // row_words
        for start in range(0, count, most):
            yield start, min(start + most, count)

    def _states_in(
        self, place: int, slot: int, states: RecurrentStates | None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each state of a slot, and the part of the arena that keeps it, both as bytes."""
        for state in () if states is None else states.of_slot(slot):
            as_bytes = state.view(-1).view(torch.uint8)
            yield as_bytes, self._part(place, place + as_bytes.numel())
            place += round_up(as_bytes.numel(), WORD)

    def _part(self, start: int, end: int) -> torch.Tensor:
        return self._arena[start:end]

    # -- rates ---------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def rates(self) -> tuple[int, int]:
        """Bytes a second, to the host and back: the best of a few copies of a few MiB. Nothing is kept meanwhile."""
        size = min(_MEASURED_BYTES, self.bytes)
        here = self._part(0, size)
        there = _mapped(size) if self._gathered is None else self._gathered.view(torch.uint8)[:size]
        out = min(self._seconds(lambda: here.copy_(there, non_blocking=True)) for _ in range(_TRIES))
        back = min(self._seconds(lambda: there.copy_(here, non_blocking=True)) for _ in range(_TRIES))
        return max(1, int(size / out)), max(1, int(size / back))

    def _seconds(self, work: Callable[[], object]) -> float:
        self._wait()
        started = time.perf_counter()
        work()
        self._wait()
        return max(time.perf_counter() - started, 1e-9)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _mapped(size: int) -> torch.Tensor:
    """Memory of the host, which the budget of a device does not count. Pages are taken when they are first used."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)


def state_bytes(sizes: Sequence[int]) -> int:
    """What the states of a slot take in a copy."""
    return sum(round_up(size, WORD) for size in sizes)


def _sent(blocks: Sequence[int], staging: Staging) -> torch.Tensor:
    return staging.send([np.array(blocks, dtype=np.int64)])[0]


def _row_bytes(rows: torch.Tensor) -> int:
    return rows.shape[1] * WORD


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where numbers that follow each other begin and end."""
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield start, place
            start = place
