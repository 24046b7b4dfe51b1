"""The worst steps of a vLLM server (`WorstStep`), most of which its own profiling skips.

In: the limits of its scheduler (`Limits`). Out: for every step its rows, as numbers. Contents do not matter for memory:
rows may share blocks, so a KV cache of one request holds every worst step at full context.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.records.fit import IMAGE_SHAPE
from brim.records.memory import StressShape

PREFILL = "prefill"
SCORES = "prompt-scores"
LONGEST_SCORES = "longest-prompt-scores"
DECODE = "decode"
VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler may put into a step."""

    batch_tokens: int
    rows: int
    length: int  # of a request, the answer included
    drafts: int = 0  # tokens drafted for a row
    draws_drafts: bool = True  # False: drafts are verified greedily only
    encodes: bool = False  # images, sound or video

    @property
    def longest(self) -> int:
        """Tokens that a step may have computed of a request which still draws one."""
        return self.length - 1


@dataclass(frozen=True, slots=True)
class Row:
    """A request in a step: `new` tokens behind `past` ones."""

    new: int
    past: int
    seed: int | None = None  # by which it draws; seeded and unseeded draws take different paths
    scored: bool = False  # log-probabilities of its prompt are asked for
    restricted: bool = False  # to some tokens of the vocabulary
    greedy: bool = False  # asks nothing of the sampler


@dataclass(frozen=True, slots=True)
class WorstStep:
    """A step that serving can produce, with everything in the sampler; with drafts, a second one verifies them."""

    shape: StressShape
    rows: tuple[Row, ...]
    drafts: int = 0


def worst_steps(limits: Limits) -> tuple[WorstStep, ...]:
    """By name: the first ones are those of text, that of an encoder is the last."""
    beside_decodes, alone = _scores(limits), _longest_scores(limits)
    steps = [_prefill(limits), beside_decodes, _decode(limits)]
    if alone.rows[0].new > beside_decodes.rows[0].new:
        steps.insert(2, alone)
    if limits.drafts and limits.batch_tokens > limits.drafts and limits.longest > limits.drafts + 1:
        steps.append(_verify(limits))
    if limits.encodes:
        steps.append(
            WorstStep(StressShape(IMAGE_SHAPE, limits.batch_tokens, 1, "the largest input of the encoder"), ())
        )
    return tuple(steps)


def _prefill(limits: Limits) -> WorstStep:
    """All tokens of a batch, in as many rows as may be, and every row draws by a seed."""
    rows = min(limits.rows, limits.batch_tokens)
    even, one_more = divmod(min(limits.batch_tokens, rows * limits.longest), rows)
    lengths = [even + 1] * one_more + [even] * (rows - one_more)
    drawn = tuple(
        Row(new, limits.longest - new, seed=index, restricted=index == 1) for index, new in enumerate(lengths)
    )
    return WorstStep(_shape(PREFILL, drawn, "every row draws by a seed"), drawn)


def _scores(limits: Limits) -> WorstStep:
    """A prompt that is scored beside decodes which all draw."""
    rows = min(limits.rows, limits.batch_tokens)
    scored = Row(min(limits.batch_tokens - rows + 1, limits.longest), 0, scored=True)
    drawn = (scored, *[Row(1, limits.longest - 1)] * (rows - 1))
    return WorstStep(_shape(SCORES, drawn, "a prompt is scored beside decodes"), drawn)


def _longest_scores(limits: Limits) -> WorstStep:
    """A prompt of a whole batch: the V1 runner makes the logits of all its tokens at once, the V2 runner in pieces."""
    scored = (Row(min(limits.batch_tokens, limits.longest), 0, scored=True),)
    return WorstStep(_shape(LONGEST_SCORES, scored, "a prompt is scored alone"), scored)


def _decode(limits: Limits) -> WorstStep:
    """The largest batch at full context: the largest graph."""
    drawn = (Row(1, limits.longest - 1),) * min(limits.rows, limits.batch_tokens)
    return WorstStep(_shape(DECODE, drawn, "every row draws at full context"), drawn)


def _verify(limits: Limits) -> WorstStep:
    """Every row has all of its draft tokens."""
    rows = min(limits.rows, limits.batch_tokens // (limits.drafts + 1))
    drawn = (Row(1, limits.longest - limits.drafts - 2, greedy=not limits.draws_drafts),) * rows
    shape = StressShape(VERIFY, rows * (limits.drafts + 1), rows, f"{limits.drafts} draft tokens a row")
    return WorstStep(shape, drawn, limits.drafts)


def _shape(name: str, rows: tuple[Row, ...], detail: str) -> StressShape:
    return StressShape(name, sum(row.new for row in rows), len(rows), detail)
