"""The model's own processor, run on the host: a prompt with media becomes tokens and tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brim.engine.media.allowed import UNCHECKED, AllowedMedia
from brim.engine.media.audio.families import PLACEHOLDER as AUDIO_PLACEHOLDER
from brim.engine.media.audio.files import at_rate, read_audio
from brim.engine.media.audio.limits import AudioLimits
from brim.engine.media.families import Family
from brim.engine.media.limits import ImageLimits
from brim.engine.media.parts import MediaKind
from brim.engine.media.plain_contents import with_plain_contents
from brim.engine.media.reading import read_image
from brim.engine.media.resizing import resized
from brim.engine.requests.control_tokens import ChatText
from brim.errors import InvalidRequest, first_line

_DEFAULT_RATE = 16_000


def run_processor(
    processor: Any,
    family: Family | None,
    prompt: str | ChatText,
    images: Sequence[Any] = (),
    audios: Sequence[Any] = (),
    allowed: AllowedMedia = UNCHECKED,
) -> tuple[list[int], Mapping[str, Any]]:
    """Tokens of a prompt with its media in it, and the processor's whole output."""
    given: dict[str, Any] = {}
    if isinstance(prompt, ChatText):
        processor, prompt = with_plain_contents(processor, prompt), prompt.marked
    if images:
        assert family is not None, "a model that takes images has a family"
        given["images"] = [[_read(image, number, allowed.images) for number, image in enumerate(images)]]
        _check_placeholders(prompt, str(getattr(processor, family.placeholder)), MediaKind.IMAGE, len(images))
    if audios:
        rate = sampling_rate(processor)
        given |= {"audio": [_at_rate(audio, number, rate, allowed.audios) for number, audio in enumerate(audios)]}
        given |= {"sampling_rate": rate}
        _check_placeholders(prompt, str(getattr(processor, AUDIO_PLACEHOLDER, None)), MediaKind.AUDIO, len(audios))
    bos = getattr(processor.tokenizer, "bos_token", None)
    has_bos = bos is not None and prompt.startswith(str(bos))  # a chat template has written it
    try:
        output = processor(text=[prompt], return_tensors="pt", add_special_tokens=not has_bos, **given)
    except Exception as error:
        what = " and ".join(kind for kind, some in ((MediaKind.IMAGE, images), (MediaKind.AUDIO, audios)) if some)
        raise InvalidRequest(f"{what}: the model's processor cannot read them: {first_line(error)}") from error
    return output["input_ids"][0].tolist(), output


def image_tokens(processor: Any, family: Family, image: Any, limits: ImageLimits | None = None) -> int:
    """Tokens that an image takes in a prompt, with what the processor writes around it."""
    placeholder = str(getattr(processor, family.placeholder))
    written, _ = run_processor(processor, family, placeholder, [image], allowed=AllowedMedia(images=limits))
    return tokens_beyond(written, processor, placeholder)


def audio_tokens(processor: Any, audio: Any, limits: AudioLimits | None = None) -> int:
    """The same of an audio."""
    placeholder = str(getattr(processor, AUDIO_PLACEHOLDER, None))
    written, _ = run_processor(processor, None, placeholder, audios=[audio], allowed=AllowedMedia(audios=limits))
    return tokens_beyond(written, processor, placeholder)


def tokens_beyond(written: Sequence[int], processor: Any, placeholder: str) -> int:
    """Tokens that the processor wrote for a placeholder, less what the tokenizer puts around any text."""
    return len(written) - len(processor.tokenizer(placeholder)["input_ids"]) + 1


def sampling_rate(processor: Any) -> int:
    """The rate of the audio that the processor's feature extractor takes."""
    return int(getattr(processor.feature_extractor, "sampling_rate", _DEFAULT_RATE))


def _read(image: Any, number: int, limits: ImageLimits | None) -> Any:
    """An image, made smaller where that was asked for."""
    read = read_image(image, number)
    return read if limits is None or not limits.resizes else resized(read, limits)


def _at_rate(audio: Any, number: int, rate: int, limits: AudioLimits | None) -> Any:
    samples, own_rate = read_audio(audio, number)
    if limits is not None:
        limits.check_seconds(f"audios: audio {number}", len(samples) / own_rate)
    return at_rate(samples, own_rate, rate)


def _check_placeholders(prompt: str, placeholder: str, kind: MediaKind, given: int) -> None:
    if prompt.count(placeholder) != given:
        raise InvalidRequest(
            f"{kind}: {given} given for {prompt.count(placeholder)} placeholders in the prompt; "
            f"write {placeholder} once for each {kind.removesuffix('s')}"
        )
