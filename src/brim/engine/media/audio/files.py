"""Audio as a feature extractor takes it: one channel of floats at its sampling rate.

In: the path or the bytes of a WAV file (`wav.py`), or samples with their sampling rate. Channels are averaged, and
another rate is resampled (`resample.py`). Other formats are decoded where `soundfile` is installed (`encoded.py`).
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from brim.engine.media.audio.encoded import AudioNotDecoded, open_encoded
from brim.engine.media.audio.resample import resampled
from brim.engine.media.audio.wav import NotWav, as_floats, one_channel, open_wav
from brim.errors import InvalidRequest, first_line

_LEAST_RATE, _MOST_RATE = 1_000, 768_000
MOST_SAMPLES = 48_000 * 3_600  # of a decoded file: an hour, some 700 MB


def read_audio(audio: Any, number: int) -> tuple[np.ndarray, int]:
    """(samples of one channel as floats, sampling rate) of a path, the bytes of a file, or (samples, rate)."""
    if isinstance(audio, tuple) and len(audio) == 2:
        samples, rate = _given(audio, number)
    elif isinstance(audio, (str, PathLike, bytes)):
        samples, rate = _from_file(audio, number)
    else:
        raise InvalidRequest(
            f"audios: audio {number} is a {type(audio).__name__}; give a path, the bytes of a file, or samples with "
            "their sampling rate: (array, 16000)"
        )
    check_rate(f"audios: audio {number}", rate)
    check_samples(f"audios: audio {number}", samples)
    return samples, rate


def check_rate(named: str, rate: int) -> None:
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise InvalidRequest(f"{named} has a sampling rate of {rate} Hz; it must be {_LEAST_RATE} to {_MOST_RATE}")


def check_samples(named: str, samples: np.ndarray) -> None:
    if not samples.size or not bool(np.isfinite(samples).all()):
        raise InvalidRequest(f"{named} has no samples, or some that are not finite")


def at_rate(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """The same audio at the rate of a feature extractor."""
    return samples if rate == wanted else resampled(samples, rate, wanted)


def _given(audio: tuple[Any, Any], number: int) -> tuple[np.ndarray, int]:
    """Samples of the caller: floats of one channel, or channels as columns."""
    try:
        samples, rate = np.asarray(audio[0]), int(audio[1])
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"audios: audio {number} is not samples with their rate: {first_line(error)}") from error
    if samples.ndim not in (1, 2) or samples.dtype.kind not in "fiu":
        raise InvalidRequest(
            f"audios: audio {number} has the shape {samples.shape} and holds {samples.dtype}; it must be [samples] or "
            "[samples, channels] of floats or integers"
        )
    return one_channel(as_floats(samples)), rate


def _from_file(audio: str | PathLike[str] | bytes, number: int) -> tuple[np.ndarray, int]:
    try:
        content = audio if isinstance(audio, bytes) else Path(audio).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"audios: audio {number} cannot be read: {error.strerror or error}") from None
    try:
        wav = open_wav(content)
    except NotWav as reason:
        return _decoded(content, number, reason)
    return wav.samples(), wav.rate


def _decoded(content: bytes, number: int, not_wav: NotWav) -> tuple[np.ndarray, int]:
    """Formats other than WAV, and of WAV those that are not read here."""
    try:
        encoded = open_encoded(content)
        check_rate(f"audios: audio {number}", encoded.rate)
        return encoded.samples(MOST_SAMPLES), encoded.rate
    except AudioNotDecoded as reason:
        said = not_wav if content[:4] == b"RIFF" else reason
        raise InvalidRequest(f"audios: audio {number} {said}") from None
