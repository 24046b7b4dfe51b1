"""A dialogue with images or audio as a prompt: the model's own processor writes the tokens that they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from brim.engine.front.chat_template import ChatTemplate
from brim.engine.media.audio.families import PLACEHOLDER
from brim.engine.media.one_by_one import OneByOne, Pixels, pixels_of, without_pixels
from brim.engine.media.processed import part_digest
from brim.engine.media.processing import run_processor, sampling_rate, tokens_beyond
from brim.errors import InvalidRequest
from brim.serve.prepare import audios, images
from brim.serve.prepare.jobs import TAIL, ChatJob, Prepared, SeenImage, TokenizerSource
from brim.serve.prepare.lengths import check_length, check_rolled_length
from brim.serve.prepare.rolling import rolled, written
from brim.serve.prepare.shared_arrays import SharedArray
from brim.serve.requests.dialogue import Dialogue
from brim.serve.requests.media import Audio, Image, Media


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
    config: Any = None


@cache
def processor_of(folder: Path | None) -> Processor:
    from transformers import AutoConfig

    from brim.engine.media.families import family_of
    from brim.engine.media.reading import load_processor

    processor = load_processor(folder)
    config: Any = AutoConfig
    whole = config.from_pretrained(str(folder))
    own = getattr(whole, "thinker_config", whole)  # a model that speaks has a thinker
    return Processor(processor, family_of(own), own)


class MediaDialogue:
    """One dialogue with media, each decoded and processed once. `known` has images that were before, by their URIs."""

    def __init__(
        self, template: ChatTemplate, source: TokenizerSource, job: ChatJob, known: Mapping[str, SeenImage]
    ) -> None:
        self._template = template
        self._job = job
        self._allowed = source.media
        self._own = processor_of(source.folder)
        self._images = images.decode_all(job.dialogue.images, job.limits, known)
        self._outputs = {uri: one.output for uri, one in known.items()}
        self._known = known
        self._audios = self._samples()
        self._counts: dict[Media, int] = {}

    def prepared(self) -> Prepared:
        kept, turns, evicted = rolled(self._job, self._count)
        text, rolls = written(self._template, kept), self._job.room is not None
        check_length(self._template.tokenizer, text.shown, self._job.threshold, counted=self._job.counted)
        if not kept.media:
            return Prepared(self._text_tokens(kept), None, turns, evicted, rolls, text.shown[-TAIL:])
        ids, output = self._processed(text, kept.images, kept.audios)
        seen = tuple((one.uri, self._seen(one)) for one in kept.images)
        pixels = seen[0][1].output if seen else {}
        media = {
            name: value.numpy()
            for name, value in output.items()
            if hasattr(value, "numpy") and not isinstance(pixels.get(name), Pixels)
        }
        counts = len(kept.images), len(kept.audios), sum(len(samples) / rate for samples, rate in self._audios.values())
        return Prepared(tuple(ids), media, turns, evicted, rolls, text.shown[-TAIL:], *counts, seen=seen)

    def _processed(self, text: Any, seen: Sequence[Image], heard: Sequence[Audio]) -> tuple[list[int], Any]:
        """What the model's processor writes, and its output without pixels."""
        own = copy(self._own.processor)
        if seen:
            own.image_processor = OneByOne(own.image_processor, [self._outputs.get(one.uri) for one in seen])
        given = [self._images[one] or _blank() for one in seen], [self._audios[one] for one in heard]
        found = run_processor(own, self._own.family, text, *given, self._allowed)
        if seen:
            self._outputs |= {one.uri: made for one, made in zip(seen, own.image_processor.outputs, strict=True)}
        return found

    def _seen(self, image: Image) -> SeenImage:
        """One that was known, or as it will be."""
        if image.uri in self._known:
            return self._known[image.uri]
        output, decoded = self._outputs[image.uri], self._images[image]
        parts = self._own.family.split(output, self._own.config)
        pixels = {name: SharedArray(one.numpy()) for name, one in pixels_of(output).items()}
        digests = tuple(map(part_digest, parts))
        return SeenImage(decoded.width * decoded.height, without_pixels(output), pixels, digests)

    def _samples(self) -> dict[Audio, audios.Samples]:
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
        if one not in self._counts:
            processor, family = self._own.processor, self._own.family
            name, given = (family.placeholder, ([one], [])) if isinstance(one, Image) else (PLACEHOLDER, ([], [one]))
            placeholder = str(getattr(processor, name, None))
            written, _ = self._processed(placeholder, *given)
            self._counts[one] = tokens_beyond(written, processor, placeholder)
        return self._counts[one]


def _blank() -> Any:
    """In place of an image that is known: processors want one."""
    from PIL import Image as Pillow

    return Pillow.new("RGB", (1, 1))
