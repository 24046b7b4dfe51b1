"""The worst steps with media, run on an engine's runner: the largest images or longest audios, in full steps.

Constructed like the other worst steps (`brim.engine.stress.text`), with media prepared like those of requests. Where a
model takes both kinds, requests with the one follow those with the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as PySequence
from dataclasses import dataclass, replace
from typing import Any

from brim.engine.kv.blocks import SCRATCH
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.request import MediaSpan, Request
from brim.engine.requests.sequence import Sequence
from brim.engine.run.launched import Launched
from brim.engine.run.runner import Runner
from brim.engine.schedule.plan import Chunk, StepPlan
from brim.engine.schedule.spans import whole_spans
from brim.engine.settings import EngineSettings
from brim.engine.stress.sequences import EVERYTHING, TOKEN, stress_sequence
from brim.records.memory import StressKind, StressShape
from brim.units import ceil_div

_SHOWN = replace(EVERYTHING, prompt_logprobs=20)


@dataclass(frozen=True, slots=True)
class WorstMediaPrompt:
    """A prompt of largest media, each followed by a text token, prepared like that of a request."""

    tokens: tuple[int, ...]
    media: Any
    spans: tuple[MediaSpan, ...]

    @property
    def whole(self) -> int:
        """Tokens that must be computed in one step."""
        return max((span.end - span.start for span in self.spans if span.together), default=1)


def image_shape(tokens: int, patches: int) -> StressShape:
    return StressShape(StressKind.IMAGE, tokens, 1, f"largest image: {patches} patches")


def audio_shape(tokens: int, frames: int) -> StressShape:
    return StressShape(StressKind.AUDIO, tokens, 1, f"longest audio: {frames} mel frames")


def media_prompt_tokens(token: int, part_tokens: int, settings: EngineSettings, max_length: int) -> list[int]:
    """As many of the largest parts as a step has room for, and a prompt; `token` stands for a row of their features."""
    longest = max_length - 1
    count = max(1, min(settings.max_batch_tokens, longest) // (part_tokens + 1))
    return ([token] * part_tokens + [TOKEN]) * count if part_tokens < longest else [token] * part_tokens


def run_media_shape(
    prompts: PySequence[WorstMediaPrompt], runner: Runner, ledger: KvLedger, settings: EngineSettings, max_length: int
) -> None:
    """Full steps of media while all other requests decode; requests have these prompts in turn.

    Prompts follow each other as in serving: the features of a part that is split between steps are kept, and the next
    one is encoded while they are still alive.
    """
    shown, others = _media_sequences(prompts, ledger, settings), []
    try:
        others = _generating(len(shown) + 1, prompts, ledger, settings)
        before: Launched | None = None
        for plan in _media_steps(shown, others, ledger, settings, max_length):
            launched = runner.launch(plan, ledger)
            ledger.commit()
            if before is not None:
                before.tokens()  # read after the next one is launched, as in serving
            before = launched
        if before is not None:
            before.tokens()
    finally:
        for sequence in (*shown, *others):
            assert sequence.blocks is not None
            ledger.close(sequence.blocks)
            sequence.slot = None  # if it did not finish, its features are dropped with the next step
        ledger.commit()


def _media_sequences(
    prompts: PySequence[WorstMediaPrompt], ledger: KvLedger, settings: EngineSettings
) -> list[Sequence]:
    """Requests with media: enough for a full step, and one of each prompt that begins after it."""
    round_tokens = sum(len(prompt.tokens) for prompt in prompts)
    rounds = ceil_div(settings.max_batch_tokens, round_tokens) + 1
    chosen = [prompt for _ in range(rounds) for prompt in prompts][: settings.max_batch]
    return [_sequence(slot, prompt, ledger) for slot, prompt in enumerate(chosen)]


def _sequence(slot: int, prompt: WorstMediaPrompt, ledger: KvLedger) -> Sequence:
    request = Request(
        f"stress-{slot}", prompt.tokens, _SHOWN, 0, _SHOWN.max_tokens, media=prompt.media, spans=prompt.spans
    )
    return Sequence(request, list(prompt.tokens), slot=slot, blocks=ledger.open(slot))


def _generating(
    first_slot: int, prompts: PySequence[WorstMediaPrompt], ledger: KvLedger, settings: EngineSettings
) -> list[Sequence]:
    """Requests that decode in the same steps, as many as leave the media enough tokens."""
    whole = max(prompt.whole for prompt in prompts)
    step = min(settings.max_batch_tokens, max(whole, *(len(prompt.tokens) for prompt in prompts)))
    count = min(
        settings.max_batch - first_slot,
        settings.max_batch_tokens - whole,
        min(ledger.available()) - ceil_div(step, ledger.block_size) - 1,
    )
    return [stress_sequence(first_slot + number, 1, EVERYTHING, ledger) for number in range(count)]


def _media_steps(
    shown: list[Sequence], others: list[Sequence], ledger: KvLedger, settings: EngineSettings, max_length: int
) -> Iterator[StepPlan]:
    """The steps that compute all prompts with media, cut as the scheduler cuts them and filled up with text."""
    slots = tuple(sequence.slot for sequence in others if sequence.slot is not None)
    filler = len(shown)  # the slot of the text
    while any(sequence.computed < sequence.prompt_length for sequence in shown):
        chunks = _media_chunks(shown, settings.max_batch_tokens - len(others), ledger)
        if not chunks:
            return  # the pool cannot hold such a part, and requests with it are refused
        left = settings.max_batch_tokens - len(others) - sum(chunk.length for chunk in chunks)
        length = min(left, max_length - 1, min(ledger.available()) * ledger.block_size)
        text = stress_sequence(filler, length, EVERYTHING, ledger) if length and filler < settings.max_batch else None
        if text is not None:
            chunks.append(Chunk(text, filler, 0, length, draws=True))
        try:
            yield StepPlan(tuple(others), slots, (1,) * len(others), tuple(chunks))
        finally:
            if text is not None and text.blocks is not None:
                ledger.close(text.blocks)
        for sequence in shown:
            _let_go(sequence, ledger)


def _media_chunks(shown: list[Sequence], budget: int, ledger: KvLedger) -> list[Chunk]:
    """The next tokens of each, first come first served, as far as the step and the pool go."""
    chunks: list[Chunk] = []
    for sequence in shown:
        assert sequence.blocks is not None
        assert sequence.slot is not None
        start = sequence.computed
        begun = min(len(table) for table in sequence.blocks.tables) * ledger.block_size - start
        room = begun + min(ledger.available()) * ledger.block_size
        wanted = min(sequence.prompt_length - start, budget, room)
        length = whole_spans(sequence.request.spans, start, wanted)
        if length:
            fits = ledger.reserve(sequence.blocks, start, start + length)
            assert fits, "a step is no larger than the pool"
            sequence.computed = start + length
            draws = sequence.computed == sequence.prompt_length
            chunks.append(Chunk(sequence, sequence.slot, start, length, draws))
            budget -= length
        if sequence.computed < sequence.prompt_length:
            break
    return chunks


def _let_go(sequence: Sequence, ledger: KvLedger) -> None:
    """Free full blocks, so that a pool for one step is enough for the longest prompt.

    The device's block table still has them: attention reads as much as it would.
    """
    assert sequence.blocks is not None
    for pool, table in zip(ledger.pools, sequence.blocks.tables, strict=True):
        for column in range(sequence.computed // ledger.block_size):
            if table[column] != SCRATCH:
                pool.release(table[column])
                table[column] = SCRATCH
