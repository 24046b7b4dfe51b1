"""A dialogue with images or audio as a prompt: the model's own processor writes the tokens that they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from brim.engine.front.chat_template import ChatTemplate
from brim.errors import InvalidRequest
from brim.serve.asked.dialogue import Dialogue, Media
from brim.serve.asked.media import Audio, Image
from brim.serve.prepare import audios, images
from brim.serve.prepare.jobs import TAIL, ChatJob, Prepared, TokenizerSource
from brim.serve.prepare.lengths import check_length, check_rolled_length
from brim.serve.prepare.rolling import rolled, written


def check_taken(dialogue: Dialogue, allowed: Any) -> None:
    """Refuse media that the model does not take; `allowed` is what the engine allows, None for text only."""
    kinds: dict[str, tuple[Sequence[Media], bool]] = {
        "images": (dialogue.images, allowed is not None and allowed.images is not None),
        "audio": (dialogue.audios, allowed is not None and allowed.audios is not None),
    }
    taken = " and ".join(["text", *(name for name, (_, takes) in kinds.items() if takes)])
    for name, (some, takes) in kinds.items():
        if some and not takes:
            raise InvalidRequest(f"{some[0].path}: this model takes {taken} only; leave out the {name}")


@dataclass(frozen=True, slots=True)
class Processor:
    """The model's own, and how its family takes images."""

    processor: Any
    family: Any  # None: it takes none


@cache
def processor_of(folder: Path | None) -> Processor:
    from transformers import AutoConfig

    from brim.engine.media.families import family_of
    from brim.engine.media.reading import load_processor

    processor = load_processor(folder)
    config: Any = AutoConfig
    whole = config.from_pretrained(str(folder))
    return Processor(processor, family_of(getattr(whole, "thinker_config", whole)))  # a model that speaks has a thinker


class MediaPrompt:
    """One dialogue with media, decoded once."""

    def __init__(self, template: ChatTemplate, source: TokenizerSource, job: ChatJob) -> None:
        self._template = template
        self._job = job
        self._allowed = source.media
        self._own = processor_of(source.folder)
        self._images = images.decode_all(job.dialogue.images, job.limits)
        self._audios = self._samples()
        self._counts: dict[Media, int] = {}

    def prepared(self) -> Prepared:
        from brim.engine.media.processing import run_processor

        kept, turns, evicted = rolled(self._job, self._count)
        text, rolls = written(self._template, kept), self._job.room is not None
        check_length(self._template.tokenizer, text.shown, self._job.threshold)
        if not kept.media:
            return Prepared(self._text_tokens(kept), None, turns, evicted, rolls, text.shown[-TAIL:])
        seen, heard = [self._images[one] for one in kept.images], [self._audios[one] for one in kept.audios]
        ids, output = run_processor(self._own.processor, self._own.family, text, seen, heard, self._allowed)
        media = {name: value.numpy() for name, value in output.items() if hasattr(value, "numpy")}
        return Prepared(tuple(ids), media, turns, evicted, rolls, text.shown[-TAIL:], len(seen), len(heard))

    def _samples(self) -> dict[Audio, audios.Samples]:
        from brim.engine.media.processing import sampling_rate

        found = self._job.dialogue.audios
        if not found:
            return {}
        rate = sampling_rate(self._own.processor)
        return audios.decode_all(found, self._job.limits, self._allowed.audios, rate)

    def _text_tokens(self, dialogue: Dialogue) -> tuple[int, ...]:
        text = written(self._template, dialogue)
        check_rolled_length(self._template.tokenizer, text.shown, self._job.threshold)
        return tuple(self._template.tokens(text))

    def _count(self, dialogue: Dialogue) -> int:
        """Tokens with all media: each has one in the text already."""
        return len(self._text_tokens(dialogue)) + sum(self._tokens_of(one) - 1 for one in dialogue.media)

    def _tokens_of(self, one: Media) -> int:
        from brim.engine.media.processing import audio_tokens, image_tokens

        if one not in self._counts:
            self._counts[one] = (
                image_tokens(self._own.processor, self._own.family, self._images[one], self._allowed.images)
                if isinstance(one, Image)
                else audio_tokens(self._own.processor, self._audios[one], self._allowed.audios)
            )
        return self._counts[one]
