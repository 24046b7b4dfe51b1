"""The batches that take the most memory, for a fit to run.

In: the longest input, the largest batch in tokens and in inputs. Out: shapes of full batches: one input as long as may
be, as many of those as fit, one more of them that are a little shorter, and as many inputs as there may be. What a
batch takes grows with its tokens, its inputs, and the product of tokens and length where attention has a mask; no batch
within the bounds has more of any of these than one of these shapes. All but the first are padded by a token, so that a
mask is made.
"""

from __future__ import annotations

from brim.engine.pooling.loading import blank_tokens
from brim.engine.pooling.model import PoolingModel
from brim.engine.pooling.requests import PoolingInput
from brim.records.memory import StressShape
from brim.units import ceil_div

BATCH = "batch"


def worst_batches(longest: int, tokens: int, rows: int) -> tuple[StressShape, ...]:
    """Of batches that have at most so many tokens, padding included, over at most so many inputs.

    Where the tokens are no multiple of the inputs, a worst batch has a few more: others may have all of them.
    """
    full = min(rows, max(1, tokens // longest))
    sizes = {1: longest, full: longest}
    for count in (full + 1, min(rows, tokens)):
        if count <= min(rows, tokens):
            sizes.setdefault(count, min(longest, ceil_div(tokens, count)))
    return tuple(
        StressShape(BATCH, count * length, count, f"{count} × {length:,}") for count, length in sorted(sizes.items())
    )


def inputs_of(shape: StressShape, model: PoolingModel) -> tuple[PoolingInput, ...]:
    """Inputs of a shape; of pairs where the model takes them."""
    length = shape.tokens // shape.sequences
    lengths = [length] * (shape.sequences - 1) + [max(1, length - (shape.sequences > 1))]
    second = length // 2 if model.takes_segments else None
    return tuple(PoolingInput(blank_tokens(one, model.vocab, model.pad_token), second) for one in lengths)
