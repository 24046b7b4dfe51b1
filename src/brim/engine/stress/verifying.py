"""The largest step with drafts: as many requests as the gate lets through, each with the longest draft.

Every row of them draws, with all that a request with drafts may ask of the sampler; the rest of the step is a prompt.
"""

from __future__ import annotations

from dataclasses import replace

from brim.engine.kv.ledger import KvLedger
from brim.engine.run.runner import Runner
from brim.engine.schedule.plan import Chunk, DraftTokens, StepPlan
from brim.engine.settings import EngineSettings
from brim.engine.stress.sequences import EVERYTHING, TOKEN, stress_sequence
from brim.records.memory import StressKind, StressShape
from brim.units import ceil_div

VERIFY = StressKind.VERIFY
_DRAFTED = replace(EVERYTHING, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, grammar=None)


def verify_shapes(settings: EngineSettings, max_length: int) -> tuple[StressShape, ...]:
    """Drafts alone, and with a prompt that fills the step; none for an engine that does not speculate."""
    rows = most_rows(settings, max_length)
    if not rows:
        return ()
    full = min(settings.max_batch_tokens, rows + max_length - 1)
    drafts = StressShape(VERIFY, rows, settings.max_drafted, "every drafted token samples")
    return (drafts,) if full == rows else (drafts, replace(drafts, tokens=full, detail="with a prompt"))


def most_rows(settings: EngineSettings, max_length: int) -> int:
    """Rows of the largest step with drafts alone; 0: nothing is drafted."""
    if not settings.max_drafted:
        return 0
    depth = _depth(settings.draft_tokens, max_length)
    return min(settings.max_drafted * (1 + depth), settings.max_batch_tokens)


def verify_step(shape: StressShape, runner: Runner, ledger: KvLedger, max_length: int) -> StepPlan:
    """A step of this shape, or as much of it as the pool can hold."""
    size = ledger.block_size
    rows = 1 + _depth(runner.shape.draft_tokens, max_length)
    blocks = min(ledger.available())
    count = min(shape.sequences, shape.tokens // rows, blocks // ceil_div(rows, size))
    sequences = tuple(stress_sequence(slot, rows, _DRAFTED, ledger) for slot in range(count))
    first = runner.scratch_slot + 1
    drafts = tuple(
        DraftTokens((TOKEN,) * (rows - 1), first + number if runner.has_states else None) for number in range(count)
    )
    left = min(shape.tokens - count * rows, max_length - 1, min(ledger.available()) * size)
    chunks: tuple[Chunk, ...] = ()
    if left > 0 and count < runner.shape.max_batch:
        chunks = (Chunk(stress_sequence(count, left, EVERYTHING, ledger), count, 0, left, draws=True),)
    return StepPlan(sequences, tuple(range(count)), (1,) * count, chunks, drafts)


def _depth(draft_tokens: int, max_length: int) -> int:
    """Tokens of the longest draft: the last token of a request is drawn and not computed."""
    return max(0, min(draft_tokens, max_length - 2))
