"""The tokens of requests with penalties, kept on the device: they are not sent up for every step, and no step waits
until the tokens of the one before it have been read.

Why the tokens, and not a count for each word of the vocabulary: 256 requests × 128k words are 100 MB and more, and as
many numbers to go through in each step; the tokens of 256 requests are 4 MiB, and no more are looked at than there are.
Why pages, and not a row for each request: a few long answers among many short ones fit. Why written where the host says
and not appended by the device: a step that failed and is launched again writes the same places again, so that nothing
has to be taken back.

The host notes which request's tokens lie where, and how many of its output are there (`PageNotes`). Whatever does not
match (a request that begins, or begins again after preemption; a slot that changed hands; a launch that failed halfway)
is written again from the host's own tokens. A request that the pool has no room for is looked up on the host in that
step, and such a step must be read before the next is launched (`LookedUp.read_first`).

Does not know what penalties do with the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from brim.engine.device.staging import Staging
from brim.engine.requests.sequence import Sequence
from brim.engine.run.rows import drawing_slots
from brim.engine.run.sampling.pages import PageNotes, SlotPages
from brim.engine.run.sampling.penalties import PAGE_TOKENS, HeldTokens
from brim.engine.run.sampling.sampler import SampleRow
from brim.engine.schedule.plan import StepPlan
from brim.units import ceil_div

TOKENS_PER_REQUEST = 4096  # of the pool, on average: 16 KiB
_PAGES_AT_ONCE = 128  # sent up together: a burst of long prompts takes no more than this


def pool_pages(max_batch: int, max_length: int) -> int:
    """Pages of the pool: enough for the longest request, and for many of usual length."""
    tokens = max(max_length, max_batch * min(max_length, TOKENS_PER_REQUEST))
    return ceil_div(tokens, PAGE_TOKENS)


class _Draw(NamedTuple):
    """A row of a step whose token depends on those before it."""

    row: int
    slot: int
    sequence: Sequence
    place: int  # of the token to draw, in the output
    known: int  # tokens of the output that the host knows: all before it, or all but the last


@dataclass(frozen=True, slots=True, eq=False)
class LookedUp:
    """A step's rows with their histories."""

    rows: list[SampleRow]
    read_first: bool  # what this step draws is needed on the host before the next one is launched
    kept: list[tuple[_Draw, SlotPages]]  # those whose new token the pool has room for


class TokenHistory:
    """A pool of pages on the device, and the notes of what they hold."""

    def __init__(self, max_batch: int, max_length: int, device: torch.device, staging: Staging) -> None:
        pages = pool_pages(max_batch, max_length)
        self._staging = staging
        self._pages = torch.zeros((pages, PAGE_TOKENS), dtype=torch.int32, device=device)
        self._notes = PageNotes(pages)
        self._prompt: tuple[tuple[int, ...], np.ndarray] = ((), np.empty(0, dtype=np.int64))

    def clear(self) -> None:
        """Forget whose tokens are where: all of them are written again when they are next looked up."""
        self._notes = PageNotes(self._pages.shape[0])

    def look_up(self, plan: StepPlan, rows: list[SampleRow], vocab: int, last_tokens: torch.Tensor) -> LookedUp:
        """Histories for the rows of a step that need one. `last_tokens` holds, by slot, what was drawn last."""
        draws = _draws(plan, rows)
        if not draws:
            return LookedUp(rows, False, [])
        notes = self._notes
        notes.begin_step({draw.slot for draw in draws})
        begun = {chunk.slot for chunk in plan.chunks}
        held: list[tuple[_Draw, SlotPages]] = []
        missing: list[_Draw] = []
        for draw in draws:
            kept = notes.find(draw.slot, draw.sequence.request.key, draw.place)
            if kept is None or draw.slot in begun:
                notes.drop(draw.slot)
                missing.append(draw)
            else:
                held.append((draw, kept))
        lasting = [(draw, kept) for draw, kept in held if notes.make_room(kept, kept.prompt + draw.place + 1)]
        written = self._write(missing, vocab, last_tokens)
        lasting += [(draw, kept) for draw, kept in written if notes.make_room(kept, kept.prompt + draw.place + 1)]
        rows, pool = list(rows), self._pages.view(-1)
        for draw, kept in [*held, *written]:
            rows[draw.row] = rows[draw.row]._replace(held=HeldTokens(pool, kept.starts, kept.prompt, draw.place))
        for draw in missing:
            if rows[draw.row].held is None:
                rows[draw.row] = _from_host(draw, rows[draw.row], last_tokens)
        return LookedUp(rows, len(lasting) < len(draws), lasting)

    def append(self, step: LookedUp, tokens: torch.Tensor) -> None:
        """Write what was drawn for the rows of a step."""
        if not step.kept:
            return
        rows = np.array([draw.row for draw, _ in step.kept], dtype=np.int64)
        places = np.array([kept.index(kept.prompt + draw.place) for draw, kept in step.kept], dtype=np.int64)
        sent = self._staging.send([rows, places])
        self._pages.view(-1)[sent[1]] = tokens[sent[0]].int()
        for draw, kept in step.kept:
            kept.output = draw.place + 1

    def _write(self, missing: Rows[_Draw], vocab: int, last_tokens: torch.Tensor) -> list[tuple[_Draw, SlotPages]]:
        """Write the tokens of requests that are not in the pool; those that there was room for."""
        written: list[tuple[_Draw, SlotPages]] = []
        numbers: list[int] = []
        pages: list[np.ndarray] = []
        for draw in missing:
            ids, prompt = self._ids(draw, vocab)
            kept = self._notes.open(draw.slot, draw.sequence.request.key, prompt)
            if not self._notes.make_room(kept, prompt + draw.place):
                self._notes.drop(draw.slot)
                continue
            written.append((draw, kept))
            numbers += kept.pages[: ceil_div(len(ids), PAGE_TOKENS)]
            pages.append(np.concatenate([ids, np.zeros(-len(ids) % PAGE_TOKENS, dtype=np.int64)]))
        if numbers:
            self._send(np.array(numbers, dtype=np.int64), np.concatenate(pages))
        self._write_last([(draw, kept) for draw, kept in written if draw.known < draw.place], last_tokens)
        for draw, kept in written:
            kept.output = draw.place
        return written

    def _ids(self, draw: _Draw, vocab: int) -> tuple[np.ndarray, int]:
        """Tokens of a request as they are kept, and how many of them are of its prompt: each id once will do."""
        sequence, first = draw.sequence, draw.sequence.prompt_length
        output = np.array(sequence.tokens[first : first + draw.known], dtype=np.int64)
        if sequence.request.params.repetition_penalty == 1:
            return output, 0
        if self._prompt[0] is not sequence.request.prompt:  # answers to one prompt begin together
            ids = np.unique(np.array(sequence.request.prompt, dtype=np.int64))
            self._prompt = sequence.request.prompt, ids[(ids >= 0) & (ids < vocab)]  # images have ids beyond
        prompt = self._prompt[1]
        return np.concatenate([prompt, output]), len(prompt)

    def _send(self, numbers: np.ndarray, tokens: np.ndarray) -> None:
        for first in range(0, len(numbers), _PAGES_AT_ONCE):
            some = slice(first, first + _PAGES_AT_ONCE)
            ids = tokens[first * PAGE_TOKENS : (first + _PAGES_AT_ONCE) * PAGE_TOKENS]
            sent = self._staging.send([numbers[some], ids])
            self._pages.index_copy_(0, sent[0], sent[1].view(-1, PAGE_TOKENS).int())

    def _write_last(self, drawn: Rows[tuple[_Draw, SlotPages]], last_tokens: torch.Tensor) -> None:
        """Tokens that the last step drew, and that have not been read yet."""
        if not drawn:
            return
        slots = np.array([draw.slot for draw, _ in drawn], dtype=np.int64)
        places = np.array([kept.index(kept.prompt + draw.place - 1) for draw, kept in drawn], dtype=np.int64)
        sent = self._staging.send([slots, places])
        self._pages.view(-1)[sent[1]] = last_tokens[sent[0]].int()


def _draws(plan: StepPlan, rows: list[SampleRow]) -> list[_Draw]:
    draws = []
    for number, (sequence, slot) in enumerate(drawing_slots(plan)):
        if sequence.needs_history:
            place = rows[number].index
            known = min(len(sequence.tokens) - sequence.prompt_length, place)
            assert place - known <= 1, "a step is read before the next but one is launched"
            draws.append(_Draw(number, slot, sequence, place, known))
    return draws


def _from_host(draw: _Draw, row: SampleRow, last_tokens: torch.Tensor) -> SampleRow:
    """A row that the pool has no room for."""
    sequence = draw.sequence
    output = sequence.tokens[sequence.prompt_length : sequence.prompt_length + draw.known]
    if draw.known < draw.place:  # waits for the device: only after a launch that failed when it had taken the pages
        output.append(int(last_tokens[draw.slot]))
    return row._replace(prompt=sequence.request.prompt, output=output)
