"""Audio as a feature extractor takes it: one channel of floats at its sampling rate.

In: the path or the bytes of a WAV file (PCM of 8 to 32 bits, or floats), or samples with their sampling rate. Channels
are averaged, and another rate is resampled (`resample.py`). Other formats are read with `soundfile` if it is installed.
"""

from __future__ import annotations

import struct
from importlib import import_module
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from brim.engine.media.audio.resample import resampled
from brim.errors import InvalidRequest, first_line

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_LEAST_RATE, _MOST_RATE = 1_000, 768_000


class _NotWav(Exception):
    """The bytes are not a WAV file that is read here, and why."""


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
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise InvalidRequest(
            f"audios: audio {number} has a sampling rate of {rate} Hz; it must be {_LEAST_RATE} to {_MOST_RATE}"
        )
    if not samples.size or not bool(np.isfinite(samples).all()):
        raise InvalidRequest(f"audios: audio {number} has no samples, or some that are not finite")
    return samples, rate


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
    return _one_channel(_as_floats(samples)), rate


def _from_file(audio: str | PathLike[str] | bytes, number: int) -> tuple[np.ndarray, int]:
    try:
        content = audio if isinstance(audio, bytes) else Path(audio).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"audios: audio {number} cannot be read: {error.strerror or error}") from None
    try:
        return read_wav(content)
    except _NotWav as reason:
        return _by_soundfile(content, number, str(reason))


def _by_soundfile(content: bytes, number: int, reason: str) -> tuple[np.ndarray, int]:
    """Formats other than WAV, by a library that may not be installed."""
    try:
        library = import_module("soundfile")
    except (ImportError, OSError):
        raise InvalidRequest(
            f"audios: audio {number} {reason}; convert it to WAV (ffmpeg -i FILE audio.wav), or pip install soundfile"
        ) from None
    try:
        samples, rate = library.read(BytesIO(content), dtype="float32", always_2d=True)
    except Exception as error:
        raise InvalidRequest(f"audios: audio {number} cannot be read: {first_line(error)}") from error
    return _one_channel(samples), int(rate)


def read_wav(content: bytes) -> tuple[np.ndarray, int]:
    """(samples of one channel, sampling rate) of a WAV file."""
    if len(content) < 12 or content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise _NotWav("is not a WAV file")
    form: bytes | None = None
    start = 12
    while start + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, start)
        body = content[start + 8 : start + 8 + size]
        if name == b"fmt ":
            form = body
        elif name == b"data":
            if form is None:
                break
            return _samples(form, body)
        start += 8 + size + size % 2
    raise _NotWav("is a WAV file without its samples or their format")


def _samples(form: bytes, body: bytes) -> tuple[np.ndarray, int]:
    if len(form) < 16:
        raise _NotWav("is a WAV file whose format is cut off")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", form)
    if tag == _EXTENSIBLE and len(form) >= 26:
        tag = struct.unpack_from("<H", form, 24)[0]
    width = bits // 8
    if not channels or not width:
        raise _NotWav(f"is a WAV file of {channels} channels of {bits} bits")
    whole = body[: len(body) // (width * channels) * width * channels]
    match tag, bits:
        case (1, 8):
            values = (np.frombuffer(whole, np.uint8).astype(np.float32) - 128) / 128
        case (1, 16 | 32):
            values = _as_floats(np.frombuffer(whole, f"<i{width}"))
        case (1, 24):
            values = _as_floats(_widened(whole))
        case (3, 32 | 64):
            values = np.frombuffer(whole, f"<f{width}").astype(np.float32)
        case _:
            raise _NotWav(f"is a WAV file of format {tag} with {bits} bits")
    return _one_channel(values.reshape(-1, channels)), rate


def _widened(content: bytes) -> np.ndarray:
    """Integers of 24 bits as the upper part of 32."""
    wide = np.zeros((len(content) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
    return wide.view("<i4")[:, 0]


def _as_floats(samples: np.ndarray) -> np.ndarray:
    """Integers become parts of their largest; floats are as they are."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    largest = np.iinfo(samples.dtype)
    middle = 0 if largest.min < 0 else (largest.max + 1) // 2
    return ((samples.astype(np.float64) - middle) / (largest.max - middle + 1)).astype(np.float32)


def _one_channel(samples: np.ndarray) -> np.ndarray:
    return samples if samples.ndim == 1 else samples.mean(axis=1, dtype=np.float32)
