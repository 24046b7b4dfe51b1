"""Steps of a vLLM server: the worst ones, most of which its own profiling skips, and small ones that load kernels.

In: the limits of its scheduler. Out: for every step its rows, as numbers. Contents do not matter for memory: rows may
share blocks, so a KV cache of one request holds every worst step at full context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import cycle

from brim.records.memory import StressKind, StressShape

PREFILL, DECODE, VERIFY = StressKind.PREFILL, StressKind.DECODE, StressKind.VERIFY
SCORES, LONGEST_SCORES, SMALL = "prompt-scores", "longest-prompt-scores", "small"  # steps of this engine only
_ODD_ROWS = 9  # vLLM's sampler takes other kernels from 8 rows on


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the scheduler may put into a step."""

    batch_tokens: int
    rows: int
    length: int  # of a request, the answer included
    drafts: int = 0  # tokens drafted for a row
    slots: int = 0  # of a row in a step, that its drafter needs beside the tokens
    draws_drafts: bool = True  # False: drafts are verified greedily only
    scores: bool = True  # prompts may be scored
    encodes: bool = False  # images, sound or video
    most_chunk: int = 0  # tokens of one prompt in a step, at most (`--long-prefill-token-threshold`); 0: all of them

    @property
    def chunk(self) -> int:
        """Tokens of one prompt that a step may have."""
        return min(self.longest, self.most_chunk or self.longest)

    @property
    def most_rows(self) -> int:
        return min(self.rows, self.batch_tokens // (1 + self.slots))

    def tokens(self, rows: int) -> int:
        """That so many rows may have together."""
        return self.batch_tokens - self.slots * rows

    @property
    def longest(self) -> int:
        """Tokens that a step may have computed of a request which still draws one, and drafts behind it.

        Nearer to its end vLLM does not draft for it, so these are the most with all of a step's work; where that is
        everywhere, it never drafts.
        """
        drafted = self.length - self.drafts - 2
        return drafted if self.drafts and drafted > 0 else self.length - 1


class Draw(Enum):
    """What a row asks of the sampler."""

    GREEDY = auto()
    PLAIN = auto()  # from the whole vocabulary
    TOP_K = auto()
    TOP_P = auto()  # each alone has kernels of its own
    EVERYTHING = auto()


@dataclass(frozen=True, slots=True)
class Row:
    """A request in a step: `new` tokens behind `past` ones."""

    new: int
    past: int
    seed: int | None = None  # by which it draws; seeded and unseeded draws take different paths
    scored: bool = False  # log-probabilities of its prompt are asked for
    restricted: bool = False  # to some tokens of the vocabulary
    draw: Draw = Draw.EVERYTHING


@dataclass(frozen=True, slots=True)
class Step:
    """A step that serving can produce; with drafts, a second one verifies them."""

    shape: StressShape
    rows: tuple[Row, ...]
    drafts: int = 0


def worst_steps(limits: SchedulerLimits) -> tuple[Step, ...]:
    """By name: the first ones are those of text, that of an encoder is the last."""
    steps = [_prefill(limits), *(_scored_steps(limits) if limits.scores else ()), _decode(limits)]
    if limits.drafts and limits.tokens(1) > limits.drafts and limits.longest > limits.drafts + 1:
        steps.append(_verify(limits))
    if limits.encodes:
        steps.append(
            Step(StressShape(StressKind.IMAGE, limits.batch_tokens, 1, "the largest input of the encoder"), ())
        )
    return tuple(steps)


def small_steps(limits: SchedulerLimits) -> tuple[Step, ...]:
    """Prompts of many lengths alone, then as many decodes, drawn in every way.

    Kernels have variants by the number of tokens, and the driver loads each at its first call: it must not need memory
    for that while a server runs. Odd lengths and multiples of 16 have variants of their own, and so have rows.
    """
    most = min(limits.tokens(1), limits.chunk)
    draws = _draws(limits)
    lengths = sorted({1, 2} | {length for power in _powers(most) for length in (power, power * 3 // 2 + 1)})
    prompts = [(Row(length, 0, draw=draw),) for length, draw in zip(lengths, cycle(draws)) if length <= most]
    most_rows = limits.most_rows
    past = min(1, limits.longest - 1)
    counts = sorted({min(rows, most_rows) for rows in (1, 2, _ODD_ROWS, most_rows)})
    decodes = [(Row(1, past, draw=draw),) * rows for rows in counts for draw in draws]
    return tuple(Step(_shape(SMALL, drawn, ""), drawn) for drawn in (*prompts, *decodes))


def _draws(limits: SchedulerLimits) -> tuple[Draw, ...]:
    """All ways. Where vLLM verifies drafts greedily only, its draw by top-k alone fails in a step without drafts."""
    greedily = limits.drafts and not limits.draws_drafts
    return tuple(draw for draw in Draw if not (greedily and draw is Draw.TOP_K))


def _powers(most: int) -> Iterator[int]:
    power = 16
    while power <= most:
        yield power
        power *= 2


def _prefill(limits: SchedulerLimits) -> Step:
    """All tokens of a batch, in as many rows as may be, and every row draws by a seed."""
    rows = limits.most_rows
    even, one_more = divmod(min(limits.tokens(rows), rows * limits.chunk), rows)
    lengths = [even + 1] * one_more + [even] * (rows - one_more)
    drawn = tuple(
        Row(new, limits.longest - new, seed=index, restricted=index == 1) for index, new in enumerate(lengths)
    )
    return Step(_shape(PREFILL, drawn, "every row draws by a seed"), drawn)


def _scored_steps(limits: SchedulerLimits) -> tuple[Step, ...]:
    """A long prompt beside decodes, and alone if that makes it longer or leaves room for another."""
    beside_decodes, alone = _scores(limits), _longest_scores(limits)
    more = alone.rows[0].new > beside_decodes.rows[0].new or len(alone.rows) > 1
    return (beside_decodes, alone) if more else (beside_decodes,)


def _scores(limits: SchedulerLimits) -> Step:
    """A prompt that is scored beside decodes which all draw."""
    rows = limits.most_rows
    drawn = (_scored(limits, limits.tokens(rows) - rows + 1), *[Row(1, limits.longest - 1)] * (rows - 1))
    return Step(_shape(SCORES, drawn, "a prompt is scored beside decodes"), drawn)


def _longest_scores(limits: SchedulerLimits) -> Step:
    """A prompt of a whole batch: the V1 runner makes the logits of all its tokens at once, the V2 runner in pieces.

    Two where prompts are cut: the V1 runner still has the scores of one while it makes the logits of the next.
    """
    rows = 2 if limits.most_rows > 1 and limits.tokens(2) >= 2 * limits.chunk else 1
    scored = (_scored(limits, limits.tokens(1)),) * rows
    return Step(_shape(LONGEST_SCORES, scored, "prompts are scored alone"), scored)


def _scored(limits: SchedulerLimits, room: int) -> Row:
    """The last chunk of the longest prompt: it also holds the scores of the chunks before it.

    A chunk before the last has the logits of one token more, which is less than what an allocation is rounded to.
    """
    new = min(room, limits.chunk)
    return Row(new, limits.longest - new, scored=True)


def _decode(limits: SchedulerLimits) -> Step:
    """The largest batch at full context: the largest graph."""
    drawn = (Row(1, limits.longest - 1),) * limits.most_rows
    return Step(_shape(DECODE, drawn, "every row draws at full context"), drawn)


def _verify(limits: SchedulerLimits) -> Step:
    """Every row has all of its draft tokens."""
    rows = min(limits.rows, limits.batch_tokens // (limits.drafts + 1 + limits.slots))
    drawn = (
        Row(1, limits.longest - limits.drafts - 2, draw=Draw.EVERYTHING if limits.draws_drafts else Draw.GREEDY),
    ) * rows
    shape = StressShape(VERIFY, rows * (limits.drafts + 1), rows, f"{limits.drafts} draft tokens a row")
    return Step(shape, drawn, limits.drafts)


def _shape(name: str, rows: tuple[Row, ...], detail: str) -> StressShape:
    return StressShape(name, sum(row.new for row in rows), len(rows), detail)
