"""From logits to tokens: in go the last logits of each row and what its request asked, out come ids on the device.

The order is that of the record: logit bias, penalties, `min_tokens`, the grammar and tokens that are not allowed; here
the logprobs are read; then temperature, top-k, top-p, min-p and the draw.

A token is a function of its own row alone: its logits, its parameters, its seed and its index. To make that exact,
probabilities are summed as integers (a sum of floats depends on how the device splits it, hence on the batch), and the
draw runs in the order of the vocabulary, over a set cut by value (tokens that tie with the last one kept stay, so the
order in which a sort leaves them does not matter).

Nothing here waits for the device. Does not know what ends a request, nor what the ids spell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from brim.engine.requests.params import SamplingParams
from brim.engine.run.sampling.masks import keep_allowed
from brim.engine.run.sampling.penalties import (
    NO_TOKENS,
    HeldTokens,
    Places,
    Tokens,
    penalise_said,
    penalise_seen,
    places_of,
)

if TYPE_CHECKING:
    import numpy as np

TOPK_LIMIT = 1024  # `torch.topk` up to here, a sort of the vocabulary beyond
WEIGHT_ONE = 2.0**40  # the weight of the likeliest token; 2^22 of them still fit 63 bits
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class SampleRow(NamedTuple):  # one for each request and step: a tuple is made three times as fast as a frozen record
    """Whose token a row of logits is for.

    The history is read only when `params.needs_history`: from the device where that holds it, or else from the host.
    """

    params: SamplingParams
    seed: int
    index: int  # type: ignore[assignment]  # tokens generated so far, that is the index of the one to choose
    prompt: Sequence[int] = ()  # each id once will do, in any order; `array("q")` is copied fastest
    output: Sequence[int] = ()
    eos_ids: tuple[int, ...] = ()
    held: HeldTokens | None = None  # in place of `prompt` and `output`
    allowed: np.ndarray | None = None  # bits of the tokens that may be drawn (a grammar's, or a list); None: any


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """The chosen ids, and logprobs where a row asked. Rows that did not ask may hold NaN and -1.

    Of kept logits there are rows only for those that asked (`brim.engine.run.sampling.top_logits`).
    """

    tokens: Tensor  # int64 [rows]
    chosen_logprob: Tensor | None = None  # float32 [rows]
    top_logprobs: Tensor | None = None  # float32 [rows, k]; k is the most that any row asked
    top_tokens: Tensor | None = None  # int64 [rows, k]
    kept_logits: Tensor | None = None  # float32 [rows that asked, k], from the largest down
    kept_tokens: Tensor | None = None  # int32 [rows that asked, k]
    log_normaliser: Tensor | None = None  # float32 [rows that asked]


class _Way(IntEnum):
    """How a row's token is found, cheapest first."""

    ARGMAX = 0
    DRAW = 1  # from the whole vocabulary
    TOPK = 2  # from what `torch.topk` cuts
    SORT = 3  # from what a sort of the vocabulary cuts


@dataclass(frozen=True, slots=True, eq=False)
class _Slice:
    """Some rows in order of their way, with their numbers on the device."""

    params: list[SamplingParams]
    ways: list[_Way]
    picked: Tensor  # the rows' places in the batch
    columns: Tensor  # float64 [len(_COLUMNS), rows]

    def column(self, name: str) -> Tensor:
        return self.columns[_COLUMNS.index(name)]

    def first(self, way: _Way) -> int:
        """Where rows of this way, or a dearer one, begin."""
        return sum(other < way for other in self.ways)


@dataclass(frozen=True, slots=True, eq=False)
class _Changes:
    """What is done to the logits of a slice before a token is drawn. Places count through the flat slice."""

    biased: Tensor
    bias: Tensor  # float64, beside `biased`
    seen: Places  # prompt and output of rows with a repetition penalty
    said: Places  # output of rows with a presence or frequency penalty
    banned: Tensor


ROWS_AT_ONCE = 64
HISTORY_AT_ONCE = 1 << 18  # tokens of prompts and outputs that penalties of one slice look at
_COLUMNS = ("uniform", "temperature", "top_k", "top_p", "log_min_p", "repetition", "presence", "frequency")


@torch.no_grad()
def sample(logits: Tensor, rows: Sequence[SampleRow], rows_at_once: int = ROWS_AT_ONCE) -> Sampled:
    """Choose a token for each row of `logits` [rows, vocab], which are left as they are.

    Rows that want more than an argmax are copied to float32, `rows_at_once` at a time.
    """
    assert logits.shape[0] == len(rows), f"{logits.shape[0]} rows of logits for {len(rows)} requests"
    order = [place for place, row in enumerate(rows) if not row.params.plain_greedy]
    order.sort(key=lambda place: _way(rows[place].params))  # each slice does the dear work on few of its rows
    # one argmax serves all plain rows; where there is none, every place is written below
    plain = len(order) < len(rows)
    tokens = logits.argmax(dim=-1) if plain else torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    asked = [count for row in rows if (count := row.params.alternatives) is not None]
    result = _with_logprobs(tokens, min(max(asked), logits.shape[1])) if asked else Sampled(tokens)
    for places in _slices(order, rows, rows_at_once):
        _sample_slice(logits, rows, places, result)
    return result


def _slices(order: list[int], rows: Sequence[SampleRow], rows_at_once: int) -> Iterator[list[int]]:
    """Rows that are worked on together: no more than asked for, and no more history than a slice may send up."""
    places: list[int] = []
    history = 0
    for place in order:
        size = _looked_at(rows[place])
        if places and (len(places) == rows_at_once or history + size > HISTORY_AT_ONCE):
            yield places
            places, history = [], 0
        places.append(place)
        history += size
    if places:
        yield places


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on nothing but these two: the `index`-th of a splitmix64 stream."""
    state = _mixed((seed + _GOLDEN) & _MASK)  # neighbouring seeds begin far apart
    return (_mixed((state + (index + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def _mixed(bits: int) -> int:
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def _way(params: SamplingParams) -> _Way:
    if params.greedy:
        return _Way.ARGMAX
    if 0 < params.top_k <= TOPK_LIMIT:
        return _Way.TOPK
    return _Way.SORT if params.top_k > 0 or params.top_p < 1 else _Way.DRAW


def _with_logprobs(tokens: Tensor, k: int) -> Sampled:
    count, device = len(tokens), tokens.device
    return Sampled(
        tokens=tokens,
        chosen_logprob=torch.full((count,), math.nan, device=device, dtype=torch.float32),
        top_logprobs=torch.full((count, k), math.nan, device=device, dtype=torch.float32),
        top_tokens=torch.full((count, k), -1, device=device, dtype=torch.int64),
    )


def _sample_slice(logits: Tensor, rows: Sequence[SampleRow], places: list[int], result: Sampled) -> None:
    """Choose for the rows at `places`, and write what was chosen into `result`."""
    ours = [rows[place] for place in places]
    part = _sent_up(ours, places, logits)
    scores = logits.index_select(0, part.picked).float()  # ours to write on
    _adjust(scores, part, _changes(ours, logits))
    keep_allowed(scores, [row.allowed for row in ours])
    wants_logprobs = any(params.logprobs is not None for params in part.params)

    drawn = part.first(_Way.DRAW)
    tokens = torch.empty(len(places), dtype=torch.int64, device=logits.device)
    if drawn > 0:
        tokens[:drawn] = scores[:drawn].argmax(dim=-1)
    if drawn < len(places):
        # the draw consumes its scores; the logprobs still need them
        tokens[drawn:] = _draw(scores[drawn:].clone() if wants_logprobs else scores[drawn:], part, drawn)
    result.tokens.index_copy_(0, part.picked, tokens)

    if wants_logprobs:
        assert result.chosen_logprob is not None
        assert result.top_logprobs is not None
        assert result.top_tokens is not None
        total = scores.logsumexp(dim=-1, keepdim=True)
        chosen = scores.gather(-1, tokens.unsqueeze(-1)) - total
        top = scores.topk(result.top_tokens.shape[1], dim=-1)
        values, named = top.values, top.indices
        if any(params.logprob_token_ids for params in part.params):
            named = _named_tokens(part.params, named)
            values = scores.gather(-1, named)
        result.chosen_logprob.index_copy_(0, part.picked, chosen.squeeze(-1))
        result.top_logprobs.index_copy_(0, part.picked, values - total)
        result.top_tokens.index_copy_(0, part.picked, named)


def _named_tokens(params: list[SamplingParams], likeliest: Tensor) -> Tensor:
    """The alternatives of each row: those that it names, or its likeliest tokens."""
    width = likeliest.shape[1]
    ids = [(list(each.logprob_token_ids) + [-1] * width)[:width] for each in params]
    (sent,) = _in_one_copy([torch.tensor(ids, dtype=torch.int64).reshape(-1)], likeliest.device)
    sent = sent.view(likeliest.shape)
    return torch.where(sent < 0, likeliest, sent)


def _adjust(scores: Tensor, part: _Slice, changes: _Changes) -> None:
    """Logit bias, penalties and `min_tokens`, in place."""
    flat = scores.view(-1)
    if len(changes.biased):
        flat.scatter_add_(0, changes.biased, changes.bias.float())
    seen = changes.seen.found()
    if len(seen):
        penalise_seen(scores, seen, part.column("repetition").float())
    del seen
    said = changes.said.found()
    if len(said):
        penalise_said(scores, said, part.column("presence").float(), part.column("frequency").float())
    if len(changes.banned):
        flat.scatter_(0, changes.banned, -math.inf)


def _draw(scores: Tensor, part: _Slice, drawn: int) -> Tensor:
    """Temperature, filters and the draw, for the rows from `drawn` on. Overwrites `scores`."""
    # the largest becomes 0 first, so that no temperature overflows it
    scores.sub_(scores.amax(dim=-1, keepdim=True))
    scores.div_(part.column("temperature")[drawn:].float().unsqueeze(-1))

    begin, end = part.first(_Way.TOPK) - drawn, part.first(_Way.SORT) - drawn
    floor = part.column("log_min_p")[drawn:].float().unsqueeze(-1)
    if begin < end:
        most = max(params.top_k for params in part.params[drawn + begin : drawn + end])
        largest = scores[begin:end].topk(min(most, scores.shape[1]), dim=-1).values
        _raise_floor(floor, largest, part, drawn, begin)
    if end < len(scores):
        _raise_floor(floor, scores[end:].sort(dim=-1, descending=True).values, part, drawn, end)
    if begin < len(scores) or any(params.min_p > 0 for params in part.params[drawn:]):
        scores.masked_fill_(scores < floor, -math.inf)

    running = _weights(scores).cumsum_(dim=-1)
    total = running[:, -1]
    target = (part.column("uniform")[drawn:] * total.double()).long().minimum(total - 1)
    # the first token whose running sum is above the target has a weight of its own, hence is never one cut off
    token = torch.searchsorted(running, target.unsqueeze(-1), right=True).squeeze(-1)
    return token.clamp_(max=scores.shape[1] - 1)  # only NaN logits get here; the id stays one of the vocabulary


def _raise_floor(floor: Tensor, largest: Tensor, part: _Slice, drawn: int, begin: int) -> None:
    """Lift the floor of some rows to the least score that top-k and then top-p keep. `largest` is sorted, down."""
    rows = slice(drawn + begin, drawn + begin + len(largest))
    last = part.column("top_k")[rows].long().unsqueeze(-1) - 1
    if any(params.top_p < 1 for params in part.params[rows]):
        weights = _weights(largest)
        places = torch.arange(largest.shape[1], device=largest.device)
        running = weights.masked_fill_(places > last, 0).cumsum_(dim=-1)
        enough = (part.column("top_p")[rows] * running[:, -1].double()).ceil().long()
        last = torch.searchsorted(running, enough.unsqueeze(-1)).minimum(last)
    here = floor[begin : begin + len(largest)]
    torch.maximum(here, largest.gather(-1, last), out=here)


def _weights(scores: Tensor) -> Tensor:
    """Probabilities as integers, where a score of 0 is the likeliest token's."""
    return scores.exp().mul_(WEIGHT_ONE).long()


def _sent_up(rows: list[SampleRow], places: list[int], logits: Tensor) -> _Slice:
    """Put the numbers of these rows on the device of the logits."""
    numbers = [_column_values(row, logits.shape[1]) for row in rows]
    picked, columns = _in_one_copy(
        [torch.tensor(places, dtype=torch.int64), torch.tensor(numbers, dtype=torch.float64).t().reshape(-1)],
        logits.device,
    )
    params = [row.params for row in rows]
    return _Slice(params, [_way(each) for each in params], picked, columns.view(len(_COLUMNS), -1))


def _changes(rows: list[SampleRow], logits: Tensor) -> _Changes:
    """Put what these rows ask to be changed on the device; a copy of its own, which is gone when that is done."""
    vocab = logits.shape[1]
    bias = [
        (number * vocab + token, value)
        for number, row in enumerate(rows)
        for token, value in row.params.logit_bias
        if token < vocab
    ]
    seen = places_of([_seen(row) for row in rows], vocab)
    said = places_of([_said(row) for row in rows], vocab)
    banned = places_of([_banned(row) for row in rows], vocab)
    sent = _in_one_copy(
        [
            torch.tensor([place for place, _ in bias], dtype=torch.int64),
            torch.tensor([value for _, value in bias], dtype=torch.float64),
            *seen.arrays,
            *said.arrays,
            banned.arrays[0],
        ],
        logits.device,
    )
    return _Changes(sent[0], sent[1], seen.on_device(sent[2:6]), said.on_device(sent[6:10]), sent[10])


def _column_values(row: SampleRow, vocab: int) -> tuple[float, ...]:
    params = row.params
    return (  # in the order of _COLUMNS
        uniform(row.seed, row.index),
        params.temperature,
        min(params.top_k, vocab) if params.top_k > 0 else vocab,
        params.top_p,
        math.log(params.min_p) if params.min_p > 0 else -math.inf,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
    )


def _looked_at(row: SampleRow) -> int:
    """Tokens that the penalties of a row look at; twice at those that two of them look at."""
    return _seen(row).size + _said(row).size if row.params.needs_history else 0


def _seen(row: SampleRow) -> Tokens:
    if row.params.repetition_penalty == 1:
        return NO_TOKENS
    if row.held is None:
        return Tokens((row.prompt, row.output))
    return Tokens(held=row.held, end=row.held.prompt + row.held.output)


def _said(row: SampleRow) -> Tokens:
    if row.params.presence_penalty == 0 and row.params.frequency_penalty == 0:
        return NO_TOKENS
    if row.held is None:
        return Tokens((row.output,))
    return Tokens(held=row.held, begin=row.held.prompt, end=row.held.prompt + row.held.output)


def _banned(row: SampleRow) -> Tokens:
    return Tokens((row.eos_ids, row.params.stop_token_ids)) if row.index < row.params.min_tokens else NO_TOKENS


def _in_one_copy(parts: list[Tensor], device: torch.device) -> list[Tensor]:
    """These host tensors on the device. All hold numbers of eight bytes, so they travel side by side."""
    packed = torch.cat([part.view(torch.int64) for part in parts])
    if device.type == "cuda":
        packed = packed.pin_memory()
    packed = packed.to(device, non_blocking=True)
    pieces = packed.split_with_sizes([len(part) for part in parts])
    return [piece.view(part.dtype) for piece, part in zip(pieces, parts, strict=True)]
