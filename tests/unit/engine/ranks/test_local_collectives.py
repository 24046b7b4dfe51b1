"""Replaced collectives: of groups that do not exist, in a process without other ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brim.errors import UnsupportedModel

torch = pytest.importorskip("torch")

from brim.engine.ranks.local_collectives import collectives_stood_in  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.units import MIB  # noqa: E402

OPERATIONS = torch.ops._c10d_functional
NOWHERE = "a group that does not exist"
MINE = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
FUNCTIONAL = {  # the operation, and what comes out of it where four ranks hold the same
    "all_reduce": (lambda mine: OPERATIONS.all_reduce(mine, "sum", NOWHERE), MINE),
    "broadcast": (lambda mine: OPERATIONS.broadcast(mine, 0, NOWHERE), MINE),
    "all_gather": (lambda mine: OPERATIONS.all_gather_into_tensor(mine, 4, NOWHERE), MINE * 4),
    "reduce_scatter": (lambda mine: OPERATIONS.reduce_scatter_tensor(mine, "sum", 4, NOWHERE), MINE[:1]),
    "all_to_all": (lambda mine: OPERATIONS.all_to_all_single(mine, [2, 0, 1, 3], [1] * 4, NOWHERE), [[0.0, 0.0]] * 6),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_ones_take_a_tensor_of_their_own(name: str) -> None:
    collective, expected = FUNCTIONAL[name]
    probe = CpuProbe(MIB)
    with probe, collectives_stood_in():
        mine = torch.tensor(MINE)
        before = probe.reading().allocated_bytes
        found = OPERATIONS.wait_tensor(collective(mine))
        assert probe.reading().allocated_bytes == probe.reading().peak_allocated_bytes == before + 512
    assert found.tolist() == expected
    assert mine.tolist() == MINE


def test_a_budget_refuses_replaced_collectives() -> None:
    with CpuProbe(512 * 4) as probe, collectives_stood_in():
        mine = torch.zeros(256)
        with pytest.raises(torch.OutOfMemoryError):
            OPERATIONS.all_gather_into_tensor(mine, 4, NOWHERE)
        assert probe.reading().allocated_bytes == 1024


@pytest.mark.parametrize("collective", [OPERATIONS.all_reduce_, OPERATIONS.all_reduce])
def test_outside_nothing_is_replaced(collective: Callable[..., torch.Tensor]) -> None:
    with collectives_stood_in():
        assert collective(torch.ones(2), "sum", NOWHERE).tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError):
        collective(torch.ones(2), "sum", NOWHERE)


def test_an_unknown_collective_is_refused() -> None:
    with collectives_stood_in(), pytest.raises(UnsupportedModel, match="'_c10d_functional::all_reduce_coalesced'"):
        OPERATIONS.all_reduce_coalesced([torch.ones(2)], "sum", NOWHERE)
