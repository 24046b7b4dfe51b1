"""The work itself: a model's tokenizer, template and processor. Runs in a worker, never beside the engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, cached_property
from typing import Any

from brim.engine.front.chat_template import ChatTemplate, has_chat_template
from brim.engine.weights.builtin import ByteTokenizer
from brim.errors import InputError, InvalidRequest
from brim.serve.prepare.inputs import InputForm, Pair, WrittenInput, written_input
from brim.serve.prepare.jobs import TAIL, ChatJob, Prepared, SeenImage, TokenizerSource
from brim.serve.prepare.lengths import check_dialogue, check_length, check_rolled_length
from brim.serve.prepare.media import MediaDialogue, check_taken, processor_of
from brim.serve.prepare.rolling import check_unicode, rolled, written
from brim.serve.requests.dialogue import Dialogue


class PromptPreparer:
    """One model's tokenizer."""

    def __init__(self, source: TokenizerSource) -> None:
        self._source = source
        self._tokenizer: Any = ByteTokenizer() if source.bytes_only else _find(source)

    def load_processor(self) -> None:
        """Before the first image or audio comes: it takes seconds. Where it cannot be loaded, they are refused."""
        if self._source.media is not None:
            with suppress(InputError):
                processor_of(self._source.folder)

    def tokens(
        self, text: str, special: bool = True, longest: int | None = None, counted: bool = False
    ) -> tuple[int, ...]:
        if self._tokenizer is None:
            raise InvalidRequest("prompt: the model has no tokenizer; give token ids")
        check_unicode(text)
        if longest is not None:
            check_length(self._tokenizer, text, longest, counted=counted)
        if not special and self._source.bytes_only:
            raise InvalidRequest("add_special_tokens: this model's tokenizer always adds them; leave it out")
        options = {} if special else {"add_special_tokens": False}
        return tuple(self._tokenizer(text, **options)["input_ids"])

    def input(self, text: str | Pair, number: int, form: InputForm) -> WrittenInput:
        """Of a model that embeds or scores."""
        return written_input(self._tokenizer, text, number, form)

    def chat(self, job: ChatJob, known: Mapping[str, SeenImage] = {}) -> Prepared:
        """`known` has images that were prepared before, by their URIs."""
        if not has_chat_template(self._tokenizer):
            raise InvalidRequest("messages: the model's tokenizer has no chat template; use /v1/completions")
        if job.dialogue.media:
            check_taken(job.dialogue, self._source.media)
        check_dialogue(self._tokenizer, job.dialogue, job.threshold, job.room is not None)
        if job.dialogue.media:
            return MediaDialogue(self._template, self._source, job, known).prepared()
        kept, turns, evicted = rolled(job, lambda dialogue: len(self._chat_tokens(dialogue, job.threshold)))
        text = written(self._template, kept)
        check_length(self._tokenizer, text.shown, job.threshold, counted=job.counted)
        tokens = tuple(self._template.tokens(text))
        return Prepared(tokens, None, turns, evicted, job.room is not None, text.shown[-TAIL:])

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._tokenizer)

    def _chat_tokens(self, dialogue: Dialogue, longest: int) -> tuple[int, ...]:
        """Of a conversation that rolls."""
        text = written(self._template, dialogue)
        check_rolled_length(self._tokenizer, text.shown, longest)
        return tuple(self._template.tokens(text))


def _find(source: TokenizerSource) -> Any:
    """The tokenizer, with the template of the processor where it has none of its own."""
    from brim.engine.front.validation import find_tokenizer

    tokenizer = find_tokenizer(source.folder)
    if tokenizer is not None and source.media is not None and not has_chat_template(tokenizer):
        with suppress(InputError):
            tokenizer.chat_template = getattr(processor_of(source.folder).processor, "chat_template", None)
    return tokenizer


@cache
def preparer_of(source: TokenizerSource) -> PromptPreparer:
    """One for each process."""
    return PromptPreparer(source)
