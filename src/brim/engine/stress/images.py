"""The worst steps with images, run on an engine's runner: the largest images, in full steps, one after another.

Constructed like the other worst steps (`brim.engine.stress.text`), with images prepared like those of requests.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from brim.records.fit import IMAGE_SHAPE
from brim.records.memory import StressShape
from brim.units import ceil_div

_SHOWN = replace(EVERYTHING, prompt_logprobs=20)


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt of largest images, each followed by a text token, prepared like that of a request."""

    tokens: tuple[int, ...]
    media: Any
    spans: tuple[MediaSpan, ...]

    @property
    def whole(self) -> int:
        """Tokens that must be computed in one step."""
        return max((span.end - span.start for span in self.spans if span.together), default=1)


def image_shape(tokens: int, patches: int) -> StressShape:
    return StressShape(IMAGE_SHAPE, tokens, 1, f"largest image: {patches} patches")


def image_prompt_tokens(token: int, image_tokens: int, settings: EngineSettings, max_length: int) -> list[int]:
    """As many of the largest images as a step has room for, and a prompt; `token` is the model's image token."""
    longest = max_length - 1
    count = max(1, min(settings.max_batch_tokens, longest) // (image_tokens + 1))
    return ([token] * image_tokens + [TOKEN]) * count if image_tokens < longest else [token] * image_tokens


def run_image_shape(
    prompt: ImagePrompt, runner: Runner, ledger: KvLedger, settings: EngineSettings, max_length: int
) -> None:
    """Full steps of images while all other requests decode.

    Prompts follow each other as in serving: the features of an image that is split between steps are kept, and the next
    image is encoded while they are still alive.
    """
    shown, others = _image_sequences(prompt, ledger, settings), []
    try:
        others = _generating(len(shown) + 1, prompt, ledger, settings)
        before: Launched | None = None
        for plan in _image_steps(shown, others, ledger, settings, max_length):
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


def _image_sequences(prompt: ImagePrompt, ledger: KvLedger, settings: EngineSettings) -> list[Sequence]:
    """Requests with images: enough for a full step, and one that begins after it."""
    params = _SHOWN
    first = Request("stress-0", prompt.tokens, params, 0, params.max_tokens, media=prompt.media, spans=prompt.spans)
    count = min(settings.max_batch, ceil_div(settings.max_batch_tokens, len(prompt.tokens)) + 1)
    return [
        Sequence(replace(first, id=f"stress-{slot}"), list(prompt.tokens), slot=slot, blocks=ledger.open(slot))
        for slot in range(count)
    ]


def _generating(first_slot: int, prompt: ImagePrompt, ledger: KvLedger, settings: EngineSettings) -> list[Sequence]:
    """Requests that decode in the same steps, as many as leave the images enough tokens."""
    step = min(settings.max_batch_tokens, max(prompt.whole, len(prompt.tokens)))
    count = min(
        settings.max_batch - first_slot,
        settings.max_batch_tokens - prompt.whole,
        min(ledger.available()) - ceil_div(step, ledger.block_size) - 1,
    )
    return [stress_sequence(first_slot + number, 1, EVERYTHING, ledger) for number in range(count)]


def _image_steps(
    shown: list[Sequence], others: list[Sequence], ledger: KvLedger, settings: EngineSettings, max_length: int
) -> Iterator[StepPlan]:
    """The steps that compute all prompts with images, cut as the scheduler cuts them and filled up with text."""
    slots = tuple(sequence.slot for sequence in others if sequence.slot is not None)
    filler = len(shown)  # the slot of the text
    while any(sequence.computed < sequence.prompt_length for sequence in shown):
        chunks = _image_chunks(shown, settings.max_batch_tokens - len(others), ledger)
        if not chunks:
            return  # the pool cannot hold such an image, and requests with it are refused
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


def _image_chunks(shown: list[Sequence], budget: int, ledger: KvLedger) -> list[Chunk]:
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
    """Free full blocks, so that a pool for one step is enough for the longest image.

    The device's block table still has them: attention reads as much as it would.
    """
    assert sequence.blocks is not None
    for pool, table in zip(ledger.pools, sequence.blocks.tables, strict=True):
        for column in range(sequence.computed // ledger.block_size):
            if table[column] != SCRATCH:
                pool.release(table[column])
                table[column] = SCRATCH
