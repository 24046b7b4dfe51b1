"""A reservation that an error ends at any call inside it: after the rollback, every block is where it was."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from brim.engine.kv import ledger as module
from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.request_blocks import RequestBlocks
from tests.unit.engine.kv.test_ledger import groups_of, ledger_of

KV = str(module.__file__).rpartition("/")[0]


class Stopped(Exception):
    pass


def stopped_at(number: int, ledger: KvLedger, request: RequestBlocks, start: int, end: int) -> bool:
    """Reserve, and raise at the so many-th call of the room's own code; False if there are not so many."""
    calls = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(KV):
            calls += 1
            if calls == number:
                raise Stopped

    sys.setprofile(profile)
    try:
        ledger.reserve(request, start, end)
    except Stopped:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("windows", [(None,), (None, 5), (3, 9)])
def test_every_block_is_where_it_was(windows: tuple[int | None, ...]) -> None:
    for number in range(1, 200):
        ledger = ledger_of(groups_of(*windows), (12,) * len(windows))
        parent, child = ledger.open(0), ledger.open(1)
        assert ledger.reserve(parent, 0, 9)
        ledger.commit()
        ledger.fork(parent, child, 9)
        before = [list(table) for table in child.tables], [pool.held for pool in ledger.pools]
        stopped = stopped_at(number, ledger, child, 8, 20)
        ledger.rollback()
        assert ([list(table) for table in child.tables], [pool.held for pool in ledger.pools]) == before
        ledger.close(child)
        ledger.close(parent)
        assert [pool.held for pool in ledger.pools] == [0] * len(windows)
        if not stopped:
            assert number > 10
            return
    pytest.fail("a reservation has an end")
