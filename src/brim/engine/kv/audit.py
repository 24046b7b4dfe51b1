"""Whether the pools and the tables of requests agree, block by block."""

from __future__ import annotations

from collections.abc import Iterable

from brim.engine.kv.blocks import SCRATCH
from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.request_blocks import RequestBlocks


def ledger_problems(ledger: KvLedger, requests: Iterable[RequestBlocks]) -> list[str]:
    """What is inconsistent between the pools and these requests, which hold all blocks that are held."""
    requests = list(requests)
    found = ["a reservation is neither committed nor rolled back"] if ledger.reserving else []
    for number, pool in enumerate(ledger.pools):
        tables = [one.tables[number] for one in requests]
        found += [f"pool {number}: {problem}" for problem in pool.problems(tables)]
        for one in requests:
            if any(block != SCRATCH for block in one.tables[number][: one.given_up[number]]):
                found.append(f"pool {number}: slot {one.slot} holds blocks that it has given up")
    return found
