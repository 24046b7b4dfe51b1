"""The work itself: a model's tokenizer, template and image processor. Runs in a worker, never beside the engine.

A conversation that rolls loses its oldest exchanges by Brim's policy (`brim.guard.rolling`), with exact counts: the
template is applied to what would be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any

from brim.engine.front.chat_template import chat_text, has_chat_template
from brim.engine.weights.builtin import ByteTokenizer
from brim.errors import InputError, InvalidRequest
from brim.guard.rolling import RollingSettings, roll
from brim.serve.asked.dialogue import Dialogue
from brim.serve.prepare.images import decode_all
from brim.serve.prepare.jobs import TAIL, ChatJob, Prepared, TokenizerSource


class Desk:
    """One model's tokenizer."""

    def __init__(self, source: TokenizerSource) -> None:
        self._source = source
        self._tokenizer: Any = ByteTokenizer() if source.bytes_only else _find(source)

    def load_processor(self) -> None:
        """Before the first image comes: it takes seconds. Where it cannot be loaded, images are refused."""
        if self._source.images:
            with suppress(InputError):
                _vision(self._source)

    def tokens(self, text: str, special: bool = True, longest: int | None = None) -> tuple[int, ...]:
        if self._tokenizer is None:
            raise InvalidRequest("prompt: the model has no tokenizer; give token ids")
        _check_unicode(text)
        if longest is not None:
            self._check_length(text, longest)
        if not special and self._source.bytes_only:
            raise InvalidRequest("add_special_tokens: this model's tokenizer always adds them; leave it out")
        options = {} if special else {"add_special_tokens": False}
        return tuple(self._tokenizer(text, **options)["input_ids"])

    def _check_length(self, text: str, longest: int) -> None:
        """Refuse a text by its length alone, where even the longest tokens would be too many."""
        if len(text) > self._token_characters * longest:
            raise InvalidRequest(
                f"prompt: its {len(text)} characters leave no room in the context of {longest} tokens; shorten it"
            )

    @cached_property
    def _token_characters(self) -> int:
        """Of the longest token; a character is at least one of a token's."""
        vocabulary = self._tokenizer.get_vocab() if hasattr(self._tokenizer, "get_vocab") else ("x",)
        return max(map(len, vocabulary))

    def chat(self, job: ChatJob) -> Prepared:
        if not has_chat_template(self._tokenizer):
            raise InvalidRequest("messages: the model's tokenizer has no chat template; use /v1/completions")
        if job.dialogue.images:
            if not self._source.images:
                raise InvalidRequest("messages: this model takes text only; leave out the images")
            return _Illustrated(self._tokenizer, self._source, job).prepared()
        kept, turns, evicted = _rolled(job, lambda dialogue: len(self._chat_tokens(dialogue)))
        text = _written(self._tokenizer, kept)
        tokens = self.tokens(text, special=False, longest=job.threshold)
        return Prepared(tokens, None, turns, evicted, job.room is not None, text[-TAIL:])

    def _chat_tokens(self, dialogue: Dialogue) -> tuple[int, ...]:
        return self.tokens(_written(self._tokenizer, dialogue), special=False)


def _find(source: TokenizerSource) -> Any:
    from brim.engine.front.door import find_tokenizer

    return find_tokenizer(source.folder)


class _Illustrated:
    """A dialogue with images: the model's own processor writes the tokens that they take."""

    def __init__(self, tokenizer: Any, source: TokenizerSource, job: ChatJob) -> None:
        self._tokenizer = tokenizer
        self._job = job
        self._processor, self._family = _vision(source)
        self._limits = source.image_limits
        self._images = decode_all(job.dialogue.images, job.limits)
        self._counts: dict[Any, int] = {}

    def prepared(self) -> Prepared:
        from brim.engine.media.allowed import AllowedMedia
        from brim.engine.media.processing import run_processor

        kept, turns, evicted = _rolled(self._job, self._count)
        text, rolls = _written(self._tokenizer, kept), self._job.room is not None
        if not kept.images:
            return Prepared(self._text_tokens(kept), None, turns, evicted, rolls, text[-TAIL:])
        images = [self._images[image] for image in kept.images]
        allowed = AllowedMedia(images=self._limits)
        ids, output = run_processor(self._processor, self._family, text, images, allowed=allowed)
        media = {name: value.numpy() for name, value in output.items() if hasattr(value, "numpy")}
        return Prepared(tuple(ids), media, turns, evicted, rolls, text[-TAIL:], len(images))

    def _text_tokens(self, dialogue: Dialogue) -> tuple[int, ...]:
        return tuple(self._tokenizer(_written(self._tokenizer, dialogue), add_special_tokens=False)["input_ids"])

    def _count(self, dialogue: Dialogue) -> int:
        from brim.engine.media.processing import image_tokens

        for image in dialogue.images:
            if image not in self._counts:
                self._counts[image] = image_tokens(self._processor, self._family, self._images[image], self._limits) - 1
        return len(self._text_tokens(dialogue)) + sum(self._counts[image] for image in dialogue.images)


@cache
def _vision(source: TokenizerSource) -> tuple[Any, Any]:
    """The model's image processor, and how its family takes images."""
    from transformers import AutoConfig

    from brim.engine.media.families import family_of
    from brim.engine.media.reading import load_processor

    processor = load_processor(source.folder)
    config: Any = AutoConfig
    return processor, family_of(config.from_pretrained(str(source.folder)))


def _written(tokenizer: Any, dialogue: Dialogue) -> str:
    text = chat_text(tokenizer, [dict(message.entry) for message in dialogue.messages], dialogue.tools)
    _check_unicode(text)
    return text


def _rolled(job: ChatJob, count: Any) -> tuple[Dialogue, int, int]:
    """(what is kept, messages dropped, tokens dropped)."""
    asked = job.dialogue
    if job.room is None or not asked.exchanges:
        return asked, 0, 0

    def tokens(numbers: Sequence[int]) -> int:
        return int(count(asked.with_exchanges(numbers)))

    settings = RollingSettings(job.threshold, max(1, job.threshold // 2))
    found = roll([False] * len(asked.exchanges), tokens, job.room, settings)
    if not found.fits:
        raise InvalidRequest(
            f"messages: the last turn and the instruction have {found.tokens} tokens, and {job.room} are wanted for "
            f"the answer: {found.tokens + job.room - job.threshold} more than the {job.threshold} of one request; "
            "shorten them, or ask for fewer max_tokens"
        )
    turns = sum(len(asked.exchanges[number]) for number in found.dropped)
    return asked.with_exchanges(found.kept), turns, found.tokens_before - found.tokens


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"prompt: its character {error.start} is half of a surrogate pair; send text") from None


@cache
def desk_of(source: TokenizerSource) -> Desk:
    """One for each process."""
    return Desk(source)
