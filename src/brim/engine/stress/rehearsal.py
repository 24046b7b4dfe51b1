"""What the steps of a split model ask of the other ranks, learned from a few small ones that this rank runs alone.

In: a runner that has just been built, and its ledger. Out: the collectives of every step (`StepCollectives`), or None
where they cannot be foretold. Nothing stays in the pool.
"""

from __future__ import annotations

from brim.engine.kv.ledger import KvLedger
from brim.engine.ranks.collectives import StepCollectives, learned
from brim.engine.run.runner import Rehearsed, Runner
from brim.engine.schedule.plan import Chunk, StepPlan
from brim.engine.stress.sequences import stress_sequence
from brim.engine.stress.warm_up import GREEDY

_TOKENS = (1, 2, 3, 5)  # of the steps: two would do, the others confirm


def rehearse(runner: Runner, ledger: KvLedger, max_length: int, group: str) -> StepCollectives | None:
    """Run them. `group`: the name of the ranks' own, the only one that collectives may be in."""
    room = min(runner.shape.max_batch_tokens, max_length - 1, min(ledger.available()) * ledger.block_size)
    noted = {tokens: _rehearsed(runner, ledger, tokens) for tokens in _TOKENS if tokens <= max(1, room)}
    return learned(
        {tokens: one.forward for tokens, one in noted.items()},
        {tokens: one.head for tokens, one in noted.items()},
        {tokens: one.tokens for tokens, one in noted.items()},
        group,
    )


def _rehearsed(runner: Runner, ledger: KvLedger, tokens: int) -> Rehearsed:
    sequence = stress_sequence(0, tokens, GREEDY, ledger)
    assert sequence.blocks is not None
    try:
        return runner.rehearse(StepPlan((), (), (), (Chunk(sequence, 0, 0, tokens, draws=True),)), ledger)
    finally:
        ledger.close(sequence.blocks)
        ledger.commit()
