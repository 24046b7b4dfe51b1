"""The work itself: a model's tokenizer, template and processor. Runs in a worker, never beside the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from math import isfinite
from typing import Any

from brim.engine.front.chat_template import ChatTemplate, has_chat_template
from brim.engine.weights.builtin import ByteTokenizer
from brim.errors import InputError, InvalidRequest
from brim.serve.prepare.inputs import InputForm, Pair, WrittenInput, written_input
from brim.serve.prepare.jobs import TAIL, ChatJob, Prepared, SeenImage, TokenizerSource
from brim.serve.prepare.lengths import check_dialogue, check_length, check_rolled_length
from brim.serve.prepare.media import MediaDialogue, check_taken, processor_of
from brim.serve.prepare.rolling import check_unicode, rolled, written
from brim.serve.prepare.variables import template_variables
from brim.serve.requests.dialogue import Dialogue

_PATHS = ("_file", "_path", "_dir")  # how settings end that say where a file is
_OF_LOADING = ("local_files_only", "token", "trust_remote_code", "backend", "is_local")


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

    # -- about tokens ----------------------------------------------------------------------------------------------

    def decoded(self, tokens: Sequence[int]) -> str:
        return str(self._known_tokenizer("tokens").decode(list(tokens), skip_special_tokens=False))

    def token_texts(self, tokens: Sequence[int]) -> list[str]:
        """Each as the tokenizer's vocabulary writes it; one that it does not have is empty."""
        tokenizer = self._known_tokenizer("return_token_strs")
        if self._source.bytes_only:
            return [tokenizer.decode([token]) for token in tokens]
        return [text or "" for text in tokenizer.convert_ids_to_tokens(list(tokens))]

    def with_special(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """With what the tokenizer puts around a text, besides what a template has written."""
        tokenizer, probe = self._known_tokenizer("add_special_tokens"), "a"
        whole, plain = list(self.tokens(probe)), list(tokenizer(probe, add_special_tokens=False)["input_ids"])
        starts = range(len(whole) - len(plain) + 1)
        start = next((one for one in starts if whole[one : one + len(plain)] == plain), 0)
        return (*whole[:start], *tokens, *whole[start + len(plain) :])

    def tokenizer_info(self) -> dict[str, Any]:
        """The tokenizer's own settings, as its `tokenizer_config.json` has them; no path of this machine."""
        tokenizer = self._known_tokenizer("tokenizer_info")
        kept = {
            name: value
            for name, value in getattr(tokenizer, "init_kwargs", {}).items()
            if not name.endswith(_PATHS) and name not in _OF_LOADING
        }
        template = getattr(tokenizer, "chat_template", None)
        named = {"tokenizer_class": type(tokenizer).__name__} | ({"chat_template": template} if template else {})
        return {**plain_json(kept), **named}

    def _known_tokenizer(self, field: str) -> Any:
        if self._tokenizer is None:
            raise InvalidRequest(f"{field}: the model has no tokenizer")
        return self._tokenizer

    # -- chats -----------------------------------------------------------------------------------------------------

    def chat(self, job: ChatJob, known: Mapping[str, SeenImage] = {}) -> Prepared:
        """`known` has images that were prepared before, by their URIs."""
        if not has_chat_template(self._tokenizer):
            raise InvalidRequest("messages: the model's tokenizer has no chat template; use /v1/completions")
        if job.dialogue.media:
            check_taken(job.dialogue, self._source.media)
        check_dialogue(self._tokenizer, job.dialogue, job.threshold, job.room is not None)
        _, unknown = template_variables(job.dialogue.template, self._template.variables)
        return replace(self._prompt(job, known), warnings=unknown)

    def _prompt(self, job: ChatJob, known: Mapping[str, SeenImage]) -> Prepared:
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


def plain_json(found: Any) -> Any:
    """Settings as JSON: tokens as their text, what JSON does not know as a text."""
    if isinstance(found, Mapping):
        return {str(name): plain_json(value) for name, value in found.items()}
    if isinstance(found, list | tuple | set | frozenset):
        return [plain_json(one) for one in found]
    if found is None or isinstance(found, str | int | bool):
        return found
    if isinstance(found, float):
        return found if isfinite(found) else None
    return str(getattr(found, "content", found))
