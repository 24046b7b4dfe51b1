"""Warm-up: small steps of every kind, run once when an engine is built, so that nothing compiles at the first requests.

Kernels have variants by the longest chunk of a step, torch's compiler treats a row of one token as a special case, and
the driver loads kernels when they are first called. The disk caches of Triton and of torch's compiler make the next
start short.

In: a runner that has just been built, and its ledger. Nothing stays in the pool. No step is larger than the worst steps
of the fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.params import MAX_ALTERNATIVES, SamplingParams
from brim.engine.requests.request import MediaSpan
from brim.engine.requests.sequence import Sequence
from brim.engine.run.runner import Runner
from brim.engine.schedule.plan import Chunk, StepPlan
from brim.engine.stress.sequences import EVERYTHING, stress_sequence
from brim.engine.stress.verifying import VERIFY, verify_step
from brim.records.memory import StressShape
from brim.records.progress import Stage, Told

LENGTHS = (1, 4, 16, 64, 256)  # tokens of a chunk: kernels choose their tiles by these, times heads
GREEDY = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
DRAWN = replace(GREEDY, temperature=1.0)  # from the whole vocabulary
FEW = replace(DRAWN, top_k=40)
LIKELY = replace(DRAWN, top_p=0.9)
SCORED = tuple(replace(GREEDY, prompt_logprobs=count) for count in (1, MAX_ALTERNATIVES))  # variants of a kernel
_SCORED_TOKENS = 2  # the least that has a token to score
_SPAN = 64  # tokens of an image that are computed together


def warm_up(runner: Runner, ledger: KvLedger, max_length: int, *, together: bool, told: Told) -> None:
    """Run them all. `together`: the tokens of an image attend to each other in both directions."""
    shape = runner.shape
    room = min(shape.max_batch_tokens, max_length - 1, min(ledger.available()) * ledger.block_size // 2)
    for length in LENGTHS:
        if length <= room:
            told(Stage("build", f"warm-up, {length} tokens"))
            _run(runner, ledger, [_sequence(0, length, GREEDY, ledger)], 0)
    told(Stage("build", "warm-up, sampler"))
    for params in (DRAWN, FEW, LIKELY, EVERYTHING):
        _run(runner, ledger, [_sequence(0, 1, params, ledger)], 0)
    for params in SCORED if room >= _SCORED_TOKENS else ():
        _run(runner, ledger, [_sequence(0, _SCORED_TOKENS, params, ledger)], 0)
    if together and room >= _SPAN:
        _run(runner, ledger, [_sequence(0, _SPAN, GREEDY, ledger, together=True)], 0)
    told(Stage("build", "warm-up, decodes"))
    for decodes in (1, 2):
        if decodes < shape.max_batch and decodes + 2 <= room:
            _run(runner, ledger, [*_generating(decodes, ledger), _sequence(decodes, 2, GREEDY, ledger)], decodes)
        if decodes <= shape.max_batch and decodes <= room:
            _run(runner, ledger, list(_generating(decodes, ledger)), decodes)
    if shape.max_drafted:
        told(Stage("build", "warm-up, drafts"))
        shapes = [StressShape(VERIFY, count * (1 + shape.draft_tokens), count) for count in (1, 2)]
        for drafts in shapes:
            if drafts.tokens <= room and drafts.sequences <= shape.max_drafted:
                _launch(runner, ledger, verify_step(drafts, runner, ledger, max_length))


def _generating(count: int, ledger: KvLedger) -> Iterator[Sequence]:
    for slot in range(count):
        yield _sequence(slot, 1, GREEDY, ledger)


def _sequence(slot: int, length: int, params: SamplingParams, ledger: KvLedger, *, together: bool = False) -> Sequence:
    sequence = stress_sequence(slot, length, params, ledger)
    if together:
        sequence.request = replace(sequence.request, spans=(MediaSpan(0, length, together=True),))
    return sequence


def _run(runner: Runner, ledger: KvLedger, sequences: list[Sequence], decodes: int) -> None:
    """One step: the first of these sequences decode, the others are in prefill."""
    generating, prompts = sequences[:decodes], sequences[decodes:]
    chunks = tuple(
        Chunk(sequence, slot, 0, sequence.prompt_length, draws=True) for slot, sequence in enumerate(prompts, decodes)
    )
    _launch(runner, ledger, StepPlan(tuple(generating), tuple(range(decodes)), (1,) * decodes, chunks))


def _launch(runner: Runner, ledger: KvLedger, plan: StepPlan) -> None:
    try:
        runner.launch(plan, ledger).tokens()
    finally:
        for sequence in plan.sequences:
            assert sequence.blocks is not None
            ledger.close(sequence.blocks)
        ledger.commit()
