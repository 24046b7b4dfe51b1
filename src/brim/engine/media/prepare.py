"""From a prompt with media to the parts of a request: token ids, pixels and mel frames, positions, spans and marks.

A prompt in text goes through the model's own processor (from the model's folder), which writes as many tokens as each
image or audio takes. Token ids must hold them already; `images` and `audios` are then the processor's output
(`pixel_values`, `input_features`, ...). Videos are taken in this form only, and seen as frames. Everything stays on the
host. All checks of media are made here.

Knows nothing of chat templates, nor of URLs (a string is a path: never pass on what a client wrote).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from brim.engine.media.allowed import UNCHECKED, AllowedMedia
from brim.engine.media.audio.families import AudioFamily, audio_family_of
from brim.engine.media.audio.limits import AudioLimits, find_audio_limits, longest_part
from brim.engine.media.checks import TENSORS, check_counts, check_given, check_sizes, runs_of
from brim.engine.media.families import Family, family_of, split_videos, video_runs
from brim.engine.media.limits import ImageLimits, find_limits, takes_any_shape, worst_part
from brim.engine.media.parts import MediaKind, MediaPart, PromptMedia
from brim.engine.media.positions import mrope_positions
from brim.engine.media.processed import DIGEST_BYTES, Processed, part_digest
from brim.engine.media.processing import audio_tokens, image_tokens, run_processor
from brim.engine.media.reading import load_processor
from brim.engine.media.towers import hears
from brim.engine.requests.control_tokens import ChatText
from brim.engine.requests.request import MediaSpan
from brim.engine.settings import EngineSettings
from brim.engine.weights.load import LoadedModel
from brim.errors import InvalidRequest

Prompt = str | ChatText | Sequence[int]  # a text, a conversation from its template, or tokens
Given = Sequence[Any] | Mapping[str, Any]  # images or audios one by one; or the output of a processor
Prepared = tuple[tuple[int, ...], PromptMedia, tuple[MediaSpan, ...], tuple[tuple[int, bytes], ...]]


@dataclass(frozen=True, slots=True)
class GivenMedia:
    """What a request brings besides its text."""

    images: Given = ()  # paths, bytes or PIL images
    audios: Given = ()  # paths, bytes or (samples, sampling rate)
    videos: Given = ()  # a processor's output only

    def __bool__(self) -> bool:
        return bool(self.kinds)

    @property
    def kinds(self) -> tuple[MediaKind, ...]:
        return tuple(kind for kind in MediaKind if len(self.of(kind)))

    def of(self, kind: MediaKind) -> Given:
        return {MediaKind.IMAGE: self.images, MediaKind.AUDIO: self.audios, MediaKind.VIDEO: self.videos}[kind]


def find_preparer(loaded: LoadedModel) -> Preparer | None:
    """Prepares media for this model; None if it takes text only."""
    config, model = loaded.full_config, loaded.model
    family = family_of(config)
    if getattr(config, "vision_config", None) is None or not hasattr(model.base_model, "get_image_features"):
        family = None  # the text model of such a family
    audio = audio_family_of(config) if hears(model) else None
    return None if family is None and audio is None else Preparer(loaded, family, audio)


class Preparer:
    """Prepares prompts with media."""

    def __init__(self, loaded: LoadedModel, family: Family | None, audio: AudioFamily | None) -> None:
        self.family = family  # how the model takes images; None: it takes none
        self.audio = audio  # and audio
        self._base = loaded.model.base_model
        self._config = loaded.full_config
        self._folder = loaded.folder
        self._vocab = loaded.vocab
        self._pad = getattr(loaded.config, "pad_token_id", None) or 0
        self._processor: Any = None

    @property
    def processor(self) -> Any:
        """The model's own processor, loaded when it is first asked for."""
        if self._processor is None:
            self._processor = load_processor(self._folder)
        return self._processor

    @property
    def together(self) -> bool:
        """Whether the tokens of an image must be computed in one step."""
        return self.family is not None and self.family.together

    def prepare(self, prompt: Prompt, given: GivenMedia, allowed: AllowedMedia = UNCHECKED) -> Prepared:
        """(tokens, media, spans, marks) of a prompt with media; a mark is where a part begins, and its digest."""
        for kind in given.kinds:
            if not self._takes(kind):
                raise InvalidRequest(f"{kind}: this model takes no {kind}")
        tokens, inputs = self._processed(prompt, given, allowed)
        check_given(inputs, given.kinds)
        parts = {kind: _told(self._split(kind, inputs), given.of(kind), kind) for kind in given.kinds}
        places = {kind: self._places(kind, tokens) for kind in given.kinds}
        for kind, some in parts.items():
            check_counts(kind, some, places[kind], self._runs(kind, some, inputs))
        self._check_allowed(parts, places, allowed)
        positions, shift = None, 0
        if self._mrope:
            frames = [] if self.audio is None else [self.audio.frames(part) for part in parts.get(MediaKind.AUDIO, ())]
            positions, shift = mrope_positions(self._base, tokens, inputs, places, frames)
        ordered, own = _in_order(parts, places)
        digests = tuple(part.digest or part_digest(part) for part in ordered)
        marks = _marks(digests, own, positions)
        for place in np.concatenate(own).tolist():
            if tokens[place] >= self._vocab:  # the decoder has no such token; features replace it anyway
                tokens[place] = self._pad
        media = PromptMedia(ordered, np.concatenate(own), positions, shift, digests)
        return tuple(tokens), media, self._spans(places), marks

    def allowed(self, loaded: LoadedModel, settings: EngineSettings, max_length: int) -> AllowedMedia:
        """What the processor allows, or the user if that is less."""
        images, audios = None, None
        if self.family is not None:
            images = find_limits(loaded, settings.max_image_pixels, max_length)
            images = replace(images, resizes=settings.resize_images and takes_any_shape(self._config))
        if self.audio is not None:
            audios = find_audio_limits(loaded, self.audio, settings.max_audio_seconds, max_length)
        return AllowedMedia(images, audios)

    def worst_part(self, kind: MediaKind, allowed: AllowedMedia, most_tokens: int) -> MediaPart | None:
        """The largest image or the longest audio of at most so many tokens; None if none is allowed."""
        if kind is MediaKind.IMAGE and allowed.images is not None:
            return worst_part(self._config, allowed.images, most_tokens)
        if kind is MediaKind.AUDIO and allowed.audios is not None and self.audio is not None:
            return longest_part(self.audio, allowed.audios, most_tokens)
        return None

    def tokens_of(self, image: Any, limits: ImageLimits | None = None) -> int:
        """Tokens that an image takes in a prompt, with what the processor writes around it."""
        if self.family is None:
            raise InvalidRequest("images: this model takes no images")
        return image_tokens(self.processor, self.family, image, limits)

    def tokens_of_audio(self, audio: Any, limits: AudioLimits | None = None) -> int:
        """The same of an audio."""
        if self.audio is None:
            raise InvalidRequest("audios: this model takes no audio")
        return audio_tokens(self.processor, audio, limits)

    @property
    def _mrope(self) -> bool:
        return hasattr(self._base, "get_rope_index")

    def token_id(self, kind: MediaKind) -> int:
        """The token that stands in a prompt for a row of this kind's features."""
        return int(getattr(self._config, f"{kind.removesuffix('s')}_token_id"))

    def _takes(self, kind: MediaKind) -> bool:
        if kind is MediaKind.AUDIO:
            return self.audio is not None
        return self.family is not None and (kind is MediaKind.IMAGE or self.family.videos)

    def _runs(self, kind: MediaKind, parts: tuple[MediaPart, ...], inputs: Mapping[str, Any]) -> list[int] | None:
        """Tokens in each run of this kind's tokens, where positions depend on it; None: they may stand anywhere."""
        if not self._mrope or kind is MediaKind.AUDIO:
            return None
        if kind is MediaKind.VIDEO:
            assert self.family is not None
            return video_runs(inputs, self._config, frames_apart=self.family.frames_apart)
        return [part.tokens for part in parts]

    def _processed(
        self, prompt: Prompt, given: GivenMedia, allowed: AllowedMedia
    ) -> tuple[list[int], Mapping[str, Any]]:
        """Token ids, and the processor's output."""
        named = given.kinds[0]
        outputs = [some for kind in given.kinds if isinstance(some := given.of(kind), Mapping)]
        if isinstance(prompt, (str, ChatText)):
            if MediaKind.VIDEO in given.kinds:
                raise InvalidRequest("videos: give the output of the model's processor, and token ids as the prompt")
            if outputs:
                raise InvalidRequest(f"{named}: with a processor's output, give its token ids as the prompt")
            return run_processor(self.processor, self.family, prompt, list(given.images), list(given.audios), allowed)
        if len(outputs) != len(given.kinds):
            raise InvalidRequest(
                f"{named}: with token ids, give the processor's output (a mapping with "
                f"{TENSORS[named]}); or give the prompt as text"
            )
        if not all(isinstance(token, int) and 0 <= token < 2**63 for token in prompt):
            raise InvalidRequest("prompt: token ids must be integers of at least 0")
        return list(prompt), {name: value for output in outputs for name, value in output.items()}

    def _split(self, kind: MediaKind, inputs: Mapping[str, Any]) -> tuple[MediaPart, ...]:
        if kind is MediaKind.AUDIO:
            assert self.audio is not None
            return self.audio.split(inputs)
        assert self.family is not None
        return (
            split_videos(inputs, self._config) if kind is MediaKind.VIDEO else self.family.split(inputs, self._config)
        )

    def _places(self, kind: MediaKind, tokens: list[int]) -> np.ndarray:
        return np.flatnonzero(np.array(tokens, dtype=object) == self.token_id(kind))

    def _check_allowed(
        self,
        parts: Mapping[MediaKind, tuple[MediaPart, ...]],
        places: Mapping[MediaKind, np.ndarray],
        allowed: AllowedMedia,
    ) -> None:
        for kind in (MediaKind.IMAGE, MediaKind.VIDEO):
            if kind in parts and allowed.images is not None:
                assert self.family is not None
                check_sizes(kind, parts[kind], runs_of(places[kind]) if self.family.tiled else None, allowed.images)
        if MediaKind.AUDIO in parts and allowed.audios is not None:
            assert self.audio is not None
            for number, part in enumerate(parts[MediaKind.AUDIO]):
                allowed.audios.check_frames(number, self.audio.frames(part))

    def _spans(self, places: Mapping[MediaKind, np.ndarray]) -> tuple[MediaSpan, ...]:
        spans = [
            MediaSpan(start, end, kind is MediaKind.IMAGE and self.together)
            for kind, some in places.items()
            for start, end in runs_of(some)
        ]
        return tuple(sorted(spans, key=lambda span: span.start))


def _told(parts: tuple[MediaPart, ...], given: Given, kind: MediaKind) -> tuple[MediaPart, ...]:
    """With the digests that came with a processor's output, where they did."""
    digests = given.digests.get(kind, ()) if isinstance(given, Processed) else ()
    if len(digests) != len(parts):
        return parts
    return tuple(replace(part, digest=digest) for part, digest in zip(parts, digests, strict=True))


def _in_order(
    parts: Mapping[MediaKind, tuple[MediaPart, ...]], places: Mapping[MediaKind, np.ndarray]
) -> tuple[tuple[MediaPart, ...], list[np.ndarray]]:
    """All parts as they come in the prompt, and the places of each one's tokens."""
    pairs: list[tuple[MediaPart, np.ndarray]] = []
    for kind, some in parts.items():
        ends = np.cumsum([part.tokens for part in some])
        pairs += zip(some, np.split(places[kind], ends[:-1]), strict=True)
    pairs.sort(key=lambda pair: int(pair[1][0]))
    own = [some for _, some in pairs]
    if bool((np.diff(np.concatenate(own)) <= 0).any()):
        named = pairs[0][0].kind
        raise InvalidRequest(f"{named}: tokens of different media stand between each other; keep each together")
    return tuple(part for part, _ in pairs), own


def _marks(
    digests: tuple[bytes, ...], own: list[np.ndarray], positions: np.ndarray | None
) -> tuple[tuple[int, bytes], ...]:
    """Where each part begins, its digest, and where its tokens are: in the prompt, and to M-RoPE."""
    marks = []
    for digest, places in zip(digests, own, strict=True):
        where = places if positions is None else np.concatenate([places, positions[:, places].ravel()])
        marks.append((int(places[0]), digest + blake2b(where.tobytes(), digest_size=DIGEST_BYTES).digest()))
    return tuple(sorted(marks))
