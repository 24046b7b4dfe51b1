"""A reservation that an error ends at any call inside it: after the rollback, every block is where it was."""

from __future__ import annotations

from functools import partial

import pytest

from brim.engine.kv import ledger as module
from tests.unit.engine.kv.test_ledger import groups_of, ledger_of
from tests.unit.engine.stopping import stopped_at

KV = str(module.__file__).rpartition("/")[0]


@pytest.mark.parametrize("windows", [(None,), (None, 5), (3, 9)])
def test_every_block_is_where_it_was(windows: tuple[int | None, ...]) -> None:
    for number in range(1, 200):
        ledger = ledger_of(groups_of(*windows), (12,) * len(windows))
        parent, child = ledger.open(0), ledger.open(1)
        assert ledger.reserve(parent, 0, 9)
        ledger.commit()
        ledger.fork(parent, child, 9)
        before = [list(table) for table in child.tables], [pool.held for pool in ledger.pools]
        stopped = stopped_at(number, partial(ledger.reserve, child, 8, 20), KV)
        ledger.rollback()
        assert ([list(table) for table in child.tables], [pool.held for pool in ledger.pools]) == before
        ledger.close(child)
        ledger.close(parent)
        assert [pool.held for pool in ledger.pools] == [0] * len(windows)
        if not stopped:
            assert number > 10
            return
    pytest.fail("a reservation has an end")
