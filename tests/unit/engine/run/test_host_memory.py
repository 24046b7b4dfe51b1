"""Copies to host memory and back: every block and state comes back as it was, wherever it goes, in any pieces."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

import torch

from brim.engine.device.staging import Staging
from brim.engine.kv.geometry import KvShape, LayerGeometry, group_layers
from brim.engine.kv.host import CopyBack, CopyOut, HostCopy, HostSizes, Move
from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.tensors import KvTensors
from brim.engine.recurrent.states import RecurrentStates, StateShape
from brim.engine.run.host_memory import HostMemory, state_bytes
from brim.probes.cpu import CpuProbe

CPU = torch.device("cpu")
LAYERS = (
    LayerGeometry(2, 8, 8),
    LayerGeometry(1, 16, 8, window=20),
    LayerGeometry(2, 8, 8, lender=0),
    LayerGeometry(1, 12, 4, value_in_key=True),
)
STATES = (
    StateShape(4, "conv", (3, 5), torch.bfloat16),
    StateShape(4, "recurrent", (2, 3), torch.float32),
    StateShape(5, "conv", (7,), torch.bfloat16),
)
SIZE, BLOCKS, SLOTS = 8, 12, 3


def filled(dtype: torch.dtype) -> tuple[KvTensors, RecurrentStates]:
    shape = KvShape(BLOCKS * SIZE, SIZE, (BLOCKS, BLOCKS))
    kv = KvTensors(LAYERS, group_layers(LAYERS), shape, rows=SLOTS, max_length=96, dtype=dtype, device=CPU)
    states = RecurrentStates(STATES, SLOTS, CPU)
    for number, tensor in enumerate([*(rows for group in (0, 1) for rows in kv.rows_of(group))]):
        tensor.copy_(torch.randint(0, 2**40, tensor.shape, generator=torch.Generator().manual_seed(number)))
    for slot in range(SLOTS):
        for state in states.of_slot(slot):
            state.copy_(torch.randn(state.shape))
    return kv, states


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("gathered_words", [None, 64, 10**6])
def test_what_comes_back_is_what_went_out(dtype: torch.dtype, gathered_words: int | None) -> None:
    """With a buffer as on a GPU, of one block or of more than all, and without."""
    numbers = random.Random(0)
    kv, states = filled(dtype)
    groups = group_layers(LAYERS)
    sizes = HostSizes(
        tuple(group.elements_per_token * SIZE * dtype.itemsize for group in groups),
        state_bytes([one.slot_bytes for one in STATES]),
    )
    memory, staging = HostMemory(2**16, CPU, row_bytes=512), Staging(CPU)
    if gathered_words is not None:
        words = max(gathered_words, *(rows.shape[1] for group in (0, 1) for rows in kv.rows_of(group)))
        memory._gathered = torch.empty(words, dtype=torch.int64)
    ledger = KvLedger(groups, KvShape(BLOCKS * SIZE, SIZE, (BLOCKS, BLOCKS)))
    columns = (range(5), range(2, 5))
    copy = HostCopy(192, sizes.copy_bytes(columns), tokens=39, reused=0, columns=columns)
    went = tuple(tuple(numbers.sample(range(1, BLOCKS + 1), len(span))) for span in columns)
    ledger.outgoing[copy] = CopyOut(copy, 1, went)
    before = [[rows[list(went[group])].clone() for rows in kv.rows_of(group)] for group in (0, 1)]
    state_before = [state.clone() for state in states.of_slot(1)]
    memory.follow(ledger, kv, states, staging)
    assert not ledger.outgoing

    untouched = [[rows.clone() for rows in kv.rows_of(group)] for group in (0, 1)]
    chosen = ((0, 1, 3), (0, 2))  # the others were found by content
    came = tuple(tuple(numbers.sample(range(1, BLOCKS + 1), len(some))) for some in chosen)
    moves = tuple(Move(some, blocks) for some, blocks in zip(chosen, came, strict=True))
    ledger.returning[0] = CopyBack(copy, 0, moves)
    memory.follow(ledger, kv, states, staging)
    for group in (0, 1):
        for rows, kept, others in zip(kv.rows_of(group), before[group], untouched[group], strict=True):
            assert torch.equal(rows[list(came[group])], kept[list(chosen[group])])
            rest = [block for block in range(BLOCKS + 1) if block not in came[group]]
            assert torch.equal(rows[rest], others[rest])
    for found, wanted in zip(states.of_slot(0), state_before, strict=True):
        assert torch.equal(found, wanted)


def test_the_rows_of_a_group_are_all_that_it_stores_once() -> None:
    """A lent layer stores nothing of its own, and a value in its key is no second tensor."""
    kv, _ = filled(torch.bfloat16)
    assert [len(kv.rows_of(group)) for group in (0, 1)] == [3, 2]
    for number, group in enumerate(group_layers(LAYERS)):
        words = sum(rows.shape[1] for rows in kv.rows_of(number))
        assert words * 8 == group.elements_per_token * SIZE * 2


def test_neither_the_arena_nor_what_it_is_measured_with_is_memory_of_the_device() -> None:
    budget = CpuProbe(2**10)
    with budget:
        memory = HostMemory(2**20, CPU, row_bytes=512)
        assert min(memory.rates()) > 0
        memory.close()
    assert (memory._arena.numel(), budget.allocations) == (0, 0)
