"""Which places of a slice of logits penalties change, and how: in go the tokens of requests, out come scores.

Tokens come in two ways. Sequences of the host are sent up. Those that the device holds (`HeldTokens`) are looked up
there: the host knows how many there are and where they lie, so no shape depends on what they are.

A place is a token's index in the flat slice, [rows × vocabulary]. An id may stand many times in a history.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

PAGE_TOKENS = 256  # of the tokens that a device holds
LEAST_REPETITION = 1e-20  # smaller penalties count as this one: a score that they made infinite would spoil its row


@dataclass(frozen=True, slots=True, eq=False)
class HeldTokens:
    """The tokens of a request on the device: those of its prompt that matter, then all of its output."""

    pool: Tensor  # int32, flat: pages of all requests
    starts: np.ndarray  # int64: where in the pool each of its pages begins, in their order
    prompt: int
    output: int


class Tokens(NamedTuple):
    """Some tokens of a request: sequences of the host, and [begin, end) of what the device holds."""

    sent: tuple[Sequence[int], ...] = ()
    held: HeldTokens | None = None
    begin: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.sent)) + self.end - self.begin


NO_TOKENS = Tokens()


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Places of a slice, as they were sent to the device. `runs` lie in `pool` one behind the other."""

    sent: Tensor  # int64
    lengths: Tensor  # int64 [runs]
    shifts: Tensor  # int64 [runs]: from a token's number among all runs to its index in the pool
    bases: Tensor  # int64 [runs]: the place of token 0 in the row
    pool: Tensor | None
    held: int  # tokens in all runs

    def found(self) -> Tensor:
        """All places, int64. They exist on the device from here on, not before."""
        if self.pool is None:
            return self.sent
        run = torch.repeat_interleave(self.lengths, output_size=self.held)
        index = torch.arange(self.held, device=run.device).add_(self.shifts[run])
        places = self.bases[run].add_(self.pool[index])
        return torch.cat([self.sent, places]) if len(self.sent) else places


class HostPlaces(NamedTuple):
    """`Places` on the host; `arrays` are what is to be sent."""

    arrays: tuple[Tensor, Tensor, Tensor, Tensor]
    pool: Tensor | None
    held: int

    def on_device(self, sent: list[Tensor]) -> Places:
        return Places(sent[0], sent[1], sent[2], sent[3], self.pool, self.held)


def places_of(rows: Sequence[Tokens], vocab: int) -> HostPlaces:
    """Where the tokens of these rows lie in their slice."""
    sent = _sent_places((row.sent for row in rows), vocab)
    held = [(number, row) for number, row in enumerate(rows) if row.held is not None and row.end > row.begin]
    if not held:
        nothing = torch.empty(0, dtype=torch.int64)
        return HostPlaces((sent, nothing, nothing, nothing), None, 0)
    lengths, shifts, bases = _runs(held, vocab)
    assert held[0][1].held is not None
    arrays = (sent, torch.from_numpy(lengths), torch.from_numpy(shifts), torch.from_numpy(bases))
    return HostPlaces(arrays, held[0][1].held.pool, int(lengths.sum()))


def _runs(rows: Sequence[tuple[int, Tokens]], vocab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each page that holds tokens of these rows: how many, where, and in whose row of logits."""
    starts, firsts, counts, begins, ends, numbers = [], [], [], [], [], []
    for number, tokens in rows:
        assert tokens.held is not None
        first, last = tokens.begin // PAGE_TOKENS, (tokens.end - 1) // PAGE_TOKENS + 1
        starts.append(tokens.held.starts[first:last])
        firsts.append(first)
        counts.append(last - first)
        begins.append(tokens.begin)
        ends.append(tokens.end)
        numbers.append(number)
    owner = np.repeat(np.arange(len(counts)), counts)
    page = np.arange(len(owner)) + np.repeat(np.array(firsts) - np.cumsum(counts) + counts, counts)
    begin = np.maximum(np.array(begins)[owner] - page * PAGE_TOKENS, 0)
    end = np.minimum(np.array(ends)[owner] - page * PAGE_TOKENS, PAGE_TOKENS)
    lengths = end - begin
    before = np.cumsum(lengths) - lengths
    return lengths, np.concatenate(starts) + begin - before, np.array(numbers)[owner] * vocab


def _sent_places(ids_of_rows: Iterable[tuple[Sequence[int], ...]], vocab: int) -> Tensor:
    """Places of ids that the host knows. Those that are no row of the vocabulary (images have such) are left out."""
    ids, lengths = array("q"), []
    for sequences in ids_of_rows:
        before = len(ids)
        for sequence in sequences:
            ids.extend(sequence)
        lengths.append(len(ids) - before)
    if not ids:
        return torch.empty(0, dtype=torch.int64)
    tokens = torch.frombuffer(ids, dtype=torch.int64)
    begins = (torch.arange(len(lengths)) * vocab).repeat_interleave(torch.tensor(lengths))
    places = tokens + begins
    least, most = tokens.aminmax()
    return places if least >= 0 and most < vocab else places[(tokens >= 0) & (tokens < vocab)]


def penalise_seen(scores: Tensor, seen: Tensor, repetition: Tensor) -> None:
    """The repetition penalty, once for each token of prompt and output. In place; all of an id write the same."""
    flat = scores.view(-1)
    penalty = repetition.clamp(min=LEAST_REPETITION)[seen // scores.shape[1]]
    before = flat[seen]
    flat.scatter_(0, seen, torch.where(before < 0, before * penalty, before / penalty))


def penalise_said(scores: Tensor, said: Tensor, presence: Tensor, frequency: Tensor) -> None:
    """The presence penalty once for each token of the output, the frequency penalty each time. In place."""
    flat = scores.view(-1)
    row = said // scores.shape[1]
    flat.scatter_(0, said, flat[said] - presence[row])
    flat.scatter_add_(0, said, -frequency[row])
