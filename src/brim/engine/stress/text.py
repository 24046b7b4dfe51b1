"""The worst text steps that serving can produce, run on an engine's runner.

The steps are constructed, not scheduled: their shapes are exact, and they leave nothing in the pool. All tokens are
equal, so that a mixture sends all of them to the same experts.

Serving launches a step while the results of the one before are still to be read, so the worst steps run beside the
fullest results that a step has: those of a full step of prompts that are all scored, and all draw with everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import replace

from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.request_blocks import RequestBlocks
from brim.engine.recurrent.mixers import CHUNK_ROWS
from brim.engine.requests.params import MAX_ALTERNATIVES, SamplingParams
from brim.engine.requests.sequence import Sequence
from brim.engine.run.runner import Runner
from brim.engine.run.sampling.sampler import HISTORY_AT_ONCE, ROWS_AT_ONCE
from brim.engine.schedule.plan import Chunk, StepPlan
from brim.engine.settings import EngineSettings
from brim.engine.stress.sequences import EVERYTHING, TOKEN, request_of, stress_sequence
from brim.engine.stress.verifying import VERIFY, verify_shapes, verify_step
from brim.records.memory import StressKind, StressShape
from brim.units import ceil_div

PREFILL, DECODE, SCORES = StressKind.PREFILL, StressKind.DECODE, StressKind.PROMPT_LOGPROBS
PLAIN, ALIKE, LONGEST = "plain", "equal-prompts", "longest-answer"  # steps of this engine only
_OVERLAPS = (DECODE, LONGEST, SCORES, ALIKE)  # not those with drafts; and a prefill is no more than one that is scored
_LOOKS = 2  # at each token of an answer: for the repetition penalty, and for the others
_PARAMS: dict[str, SamplingParams] = {
    PREFILL: EVERYTHING,
    DECODE: EVERYTHING,
    ALIKE: EVERYTHING,
    SCORES: replace(EVERYTHING, prompt_logprobs=MAX_ALTERNATIVES),
    PLAIN: SamplingParams(max_tokens=1, temperature=0, ignore_eos=True),  # the model only: what a trace predicts
}


def text_shapes(settings: EngineSettings, max_length: int, alike: int | None = None) -> tuple[StressShape, ...]:
    """Full steps of every kind: prefill in which every prompt samples, decode, scores of a whole step, drafts.

    Scores are of as many prompts as a step has, each of which samples too, and of one prompt, the most that there are.
    `alike` is the chunk length at which a batch of recurrent layers needs the most memory, if there are such layers.
    """
    tokens = min(settings.max_batch_tokens, settings.max_batch * (max_length - 1))
    prompts = len(_lengths(tokens, settings.max_batch, max_length))
    fewest = len(_lengths(tokens, 1, max_length))
    shapes = [
        StressShape(PREFILL, tokens, prompts, "every prompt samples"),
        StressShape(SCORES, tokens, prompts, "log-probabilities, and every prompt samples"),
        StressShape(SCORES, tokens, fewest, "log-probabilities of all tokens"),
        StressShape(DECODE, settings.max_batch, settings.max_batch, "full sampler"),
    ]
    if prompts == fewest:
        del shapes[2]
    if _LOOKS * (max_length - 2) > HISTORY_AT_ONCE:
        shapes.append(StressShape(LONGEST, settings.max_batch, settings.max_batch, "penalties of the longest answer"))
    shapes += verify_shapes(settings, max_length)
    if alike is None:
        return tuple(shapes)
    length = max(1, min(alike, (max_length - 1) // 2))  # as much has been computed before
    count = max(1, min(settings.max_batch, tokens // length))
    return (*shapes, StressShape(ALIKE, count * length, count, "chunks of equal length"))


def steps_before(shape: StressShape, worst: Several[StressShape]) -> tuple[StressShape, ...]:
    """Steps of which one has the fullest results, to be read yet while this one runs; none but beside the worst.

    Many prompts draw more tokens, and one prompt has more scores: which results are fuller depends on the vocabulary.
    """
    if shape.name not in _OVERLAPS or shape not in worst:
        return ()
    return tuple(one for one in worst if one.name == SCORES)


def run_text_shape(shape: StressShape, runner: Runner, ledger: KvLedger, max_length: int) -> None:
    """Run one step of this shape to its end."""
    with text_step(shape, runner, ledger, max_length) as plan:
        runner.launch(plan, ledger).tokens()


@contextmanager
def text_step(shape: StressShape, runner: Runner, ledger: KvLedger, max_length: int) -> Iterator[StepPlan]:
    """A step of this shape, whose requests hold their blocks meanwhile."""
    runner.forget_history()  # of a step like this one: each takes what the first one takes
    if shape.name in (DECODE, LONGEST):
        count = min(shape.sequences, min(ledger.available()))
        plan = _decodes(count, max_length, ledger, longest=shape.name == LONGEST)
    elif shape.name == VERIFY:
        plan = verify_step(shape, runner, ledger, max_length)
    elif shape.name == ALIKE:
        plan = _equal_parts(shape.tokens // shape.sequences, shape.sequences, ledger)
    else:
        lengths = _within_pool(_lengths(shape.tokens, shape.sequences, max_length), max_length, ledger)
        gathers = runner.shape.device.type == "cpu" and shape.name != PLAIN  # kernels allocate nothing by context
        plan = _chunks(lengths, max_length if gathers else 0, _PARAMS[shape.name], ledger)
    try:
        yield plan
    finally:
        for sequence in plan.sequences:
            assert sequence.blocks is not None
            ledger.close(sequence.blocks)
        ledger.commit()


def _lengths(tokens: int, sequences: int, max_length: int) -> list[int]:
    """Prompt lengths that make up a step: as many as requested, more where one would be too long."""
    longest = max_length - 1
    lengths = [1] * min(sequences, tokens)
    left = tokens - len(lengths)
    for number in range(len(lengths)):
        more = min(left, longest - 1)
        lengths[number] += more
        left -= more
    while left > 0:
        lengths.append(min(left, longest))
        left -= lengths[-1]
    return lengths


def _within_pool(lengths: list[int], max_length: int, ledger: KvLedger) -> list[int]:
    """As much of a step as the pool can hold, which is the most that serving could run: rows first, then tokens."""
    size, blocks = ledger.block_size, min(ledger.available())
    if sum(ceil_div(length, size) for length in lengths) <= blocks:
        return lengths
    fitted = [1] * min(len(lengths), blocks)
    spare, left = blocks - len(fitted), sum(lengths) - len(fitted)
    for number in range(len(fitted)):
        more = min(left, max_length - 2, size - 1 + spare * size)
        fitted[number] += more
        spare -= ceil_div(fitted[number], size) - 1
        left -= more
    return fitted


def _chunks(lengths: list[int], max_length: int, params: SamplingParams, ledger: KvLedger) -> StepPlan:
    """Prompts; the first is the end of the longest request that is allowed and fits the pool."""
    others = [stress_sequence(number, length, params, ledger) for number, length in enumerate(lengths) if number > 0]
    first = _longest(lengths[0], sum(lengths), max_length, params, ledger)
    chunks = []
    for number, (sequence, length) in enumerate(zip([first, *others], lengths, strict=True)):
        chunks.append(Chunk(sequence, number, sequence.prompt_length - length, length, draws=True))
    return StepPlan((), (), (), tuple(chunks))


def _equal_parts(length: int, count: int, ledger: KvLedger) -> StepPlan:
    """Chunks of equal length. As many as run in one batch have a past of that length, if the pool has the blocks."""
    size, blocks = ledger.block_size, min(ledger.available())
    length = min(length, blocks * size)
    whole, both = ceil_div(length, size), ceil_div(2 * length, size)
    count = min(count, blocks // whole)
    room = blocks - count * whole
    rows = min(count, CHUNK_ROWS)
    later = rows if rows * (both - whole) <= room else 0
    chunks = []
    for slot in range(count):
        past = length if slot < later else 0
        sequence = stress_sequence(slot, past + length, EVERYTHING, ledger)
        chunks.append(Chunk(sequence, slot, past, length, draws=True))
    return StepPlan((), (), (), tuple(chunks))


def _longest(length: int, step: int, max_length: int, params: SamplingParams, ledger: KvLedger) -> Sequence:
    """A request whose last tokens are computed in this step, and all others are in the pool."""
    size = ledger.block_size
    whole = [pool.available for pool, group in zip(ledger.pools, ledger.groups, strict=True) if group.window is None]
    spare = min(whole, default=max_length) - ceil_div(length, size)
    context = max(0, min(max_length - 1 - length, spare * size))
    while True:
        blocks = ledger.open(0)
        if _reserve_in_steps(blocks, context, length, step, ledger):
            return request_of(0, context + length, params, blocks)
        assert context, "a step is no larger than the pool"
        ledger.close(blocks)
        context = context // 2 // size * size


def _reserve_in_steps(blocks: RequestBlocks, context: int, length: int, step: int, ledger: KvLedger) -> bool:
    """Reserve a long request as serving does: step by step, each freeing the blocks behind its windows."""
    for start in range(0, context, step):
        end = min(start + step, context)
        if not ledger.reserve(blocks, start, end):
            return False
        ledger.give_up_behind(blocks, end)
    return ledger.reserve(blocks, context, context + length)


def _decodes(count: int, max_length: int, ledger: KvLedger, *, longest: bool) -> StepPlan:
    """A token for each request. Their penalties look at as many tokens at once as they ever do.

    That is what a slice of rows may look at together, or all that one of them says (`longest`). The keys of those
    tokens do not matter here and are not in the pool.
    """
    sequences = tuple(stress_sequence(number, 1, EVERYTHING, ledger) for number in range(count))
    said = min(max_length - 2, HISTORY_AT_ONCE // (_LOOKS * max(1, min(count, ROWS_AT_ONCE))))
    for number, sequence in enumerate(sequences):
        sequence.tokens += [TOKEN] * (max_length - 2 if longest and number == 0 else said)
    return StepPlan(sequences, tuple(range(count)), (1,) * count, ())


def least_stress_tokens(settings: EngineSettings) -> int:
    """KV tokens with which every shape can run in full: a full step, and each request's last block half empty."""
    return max(settings.max_batch_tokens + settings.max_batch * settings.block_size, 8192)
