"""Audio of a request: files in base64 (WAV; mp3, flac and ogg with the extra `audio`) to samples at the model's rate.

A file that is too long is refused by its header, before a sample of it is read; lengths that a header promises are
never believed: no more of a file is decoded than may be heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from brim.engine.media.audio.encoded import AudioNotDecoded, EncodedAudio, open_encoded
from brim.engine.media.audio.files import MOST_SAMPLES, at_rate, check_rate, check_samples
from brim.engine.media.audio.wav import NotWav, Wav, open_wav
from brim.errors import InvalidRequest
from brim.serve.prepare.base64_files import file_of
from brim.serve.requests.media import Audio
from brim.serve.settings import RequestLimits
from brim.units import format_bytes

if TYPE_CHECKING:
    from brim.engine.media.audio.limits import AudioLimits

Samples = tuple[Any, int]  # an array of one channel, and its sampling rate
OpenedFile = Wav | EncodedAudio


def decode_all(
    audios: Sequence[Audio], limits: RequestLimits, model: AudioLimits | None, rate: int
) -> dict[Audio, Samples]:
    """Samples of each, at this rate; what the model or the server takes at most is checked before."""
    files: dict[Audio, OpenedFile] = {}
    left = limits.audio_seconds
    for audio in audios:
        files[audio] = _opened(audio, limits)
        _check_length(audio, files[audio], left, limits, model)
        left -= files[audio].seconds
    most = limits.audio_seconds if model is None else min(limits.audio_seconds, model.seconds)
    return {audio: (_samples(audio, file, rate, most), rate) for audio, file in files.items()}


def _opened(audio: Audio, limits: RequestLimits) -> OpenedFile:
    content = file_of(audio.written, _named(audio), limits.audio_bytes)
    try:
        wav = open_wav(content)
    except NotWav as reason:
        if content[:4] != b"RIFF":
            return _encoded(audio, content)
        raise InvalidRequest(
            f"{_named(audio)} {reason}; WAV files of PCM or floats are taken: convert it "
            "(ffmpeg -i FILE -c:a pcm_s16le audio.wav)"
        ) from None
    if wav.cut_off:
        raise InvalidRequest(
            f"{_named(audio)} is cut off: its header promises {format_bytes(wav.promised_bytes)} of samples, and "
            f"{format_bytes(len(wav.body))} were sent"
        )
    return wav


def _encoded(audio: Audio, content: bytes) -> EncodedAudio:
    try:
        found = open_encoded(content)
    except AudioNotDecoded as reason:
        raise InvalidRequest(f"{_named(audio)} {reason}") from None
    if found.frames > MOST_SAMPLES:
        raise InvalidRequest(f"{_named(audio)} has {found.frames:,} samples; at most {MOST_SAMPLES:,} are decoded")
    return found


def _check_length(audio: Audio, wav: OpenedFile, left: float, limits: RequestLimits, model: AudioLimits | None) -> None:
    check_rate(_named(audio), wav.rate)
    if model is not None:
        model.check_seconds(_named(audio), wav.seconds)
    if wav.seconds > left:
        raise InvalidRequest(
            f"{_named(audio)} lasts {wav.seconds:.2f} seconds, more than the {left:.2f} that are left of "
            f"{limits.audio_seconds:g} for all audio of a request; send less"
        )


def _samples(audio: Audio, file: OpenedFile, rate: int, most_seconds: float) -> Any:
    if isinstance(file, Wav):
        samples = file.samples()
    else:
        try:
            samples = file.samples(min(MOST_SAMPLES, int(most_seconds * file.rate) + 1))
        except AudioNotDecoded as reason:
            raise InvalidRequest(f"{_named(audio)} {reason}") from None
    check_samples(_named(audio), samples)
    return at_rate(samples, file.rate, rate)


def _named(audio: Audio) -> str:
    return f"{audio.path}: the audio"
