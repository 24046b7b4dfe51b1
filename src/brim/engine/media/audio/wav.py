"""WAV files: how long one is and how its samples are stored, from the header alone; then the samples.

In: the bytes of a file. Out: `Wav`, for PCM of 8, 16, 24 and 32 bits and floats of 32 and 64. Sizes in a header are
never believed: what is not there is not read, and `cut_off` lets a caller refuse a file that promised more.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_READ = {(_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64)}
_UNKNOWN_SIZE = 0xFFFFFFFF  # of a file that was written while nobody knew how long it would become


class NotWav(Exception):
    """The bytes are not a WAV file that is read here, and why."""


@dataclass(frozen=True, slots=True)
class Wav:
    """A WAV file of a kind that is read; its samples are as they lie in the file."""

    floats: bool
    bits: int
    channels: int
    rate: int
    body: memoryview
    promised_bytes: int  # of samples, by the header

    @property
    def length(self) -> int:
        """Samples of each channel."""
        return len(self.body) // self._frame_bytes

    @property
    def seconds(self) -> float:
        return self.length / self.rate if self.rate else 0.0

    @property
    def cut_off(self) -> bool:
        """Fewer samples are there than its writer knew of."""
        return len(self.body) < self.promised_bytes != _UNKNOWN_SIZE

    @property
    def _frame_bytes(self) -> int:
        return self.channels * self.bits // 8

    def samples(self) -> np.ndarray:
        """As floats of one channel, the average of all."""
        whole = self.body[: self.length * self._frame_bytes]
        return one_channel(self._values(whole).reshape(-1, self.channels))

    def _values(self, stored: memoryview) -> np.ndarray:
        if self.floats:
            return np.frombuffer(stored, f"<f{self.bits // 8}").astype(np.float32)
        if self.bits == 8:
            return as_floats(np.frombuffer(stored, np.uint8))
        return as_floats(_widened(stored) if self.bits == 24 else np.frombuffer(stored, f"<i{self.bits // 8}"))


def open_wav(content: bytes) -> Wav:
    """The header of a WAV file, with its samples unread."""
    if len(content) < 12 or content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise NotWav("is not a WAV file")
    form: memoryview | None = None
    view, start = memoryview(content), 12
    while start + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, start)
        body = view[start + 8 : start + 8 + size]
        if name == b"fmt ":
            form = body
        elif name == b"data":
            if form is None:
                break
            return _described(form, body, size)
        start += 8 + size + size % 2
    raise NotWav("is a WAV file without its samples or their format")


def _described(form: memoryview, body: memoryview, promised_bytes: int) -> Wav:
    if len(form) < 16:
        raise NotWav("is a WAV file whose format is cut off")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", form)
    if tag == _EXTENSIBLE and len(form) >= 26:
        tag = struct.unpack_from("<H", form, 24)[0]
    if not channels or not bits:
        raise NotWav(f"is a WAV file of {channels} channels of {bits} bits")
    if (tag, bits) not in _READ:
        raise NotWav(f"is a WAV file of format {tag} with {bits} bits")
    return Wav(tag == _FLOAT, bits, channels, rate, body, promised_bytes)


def as_floats(samples: np.ndarray) -> np.ndarray:
    """Integers become parts of their largest; floats are as they are."""
    if samples.dtype.kind == "f":
        return samples.astype(np.float32)
    largest = np.iinfo(samples.dtype)
    middle = 0 if largest.min < 0 else (largest.max + 1) // 2
    return ((samples.astype(np.float64) - middle) / (largest.max - middle + 1)).astype(np.float32)


def one_channel(samples: np.ndarray) -> np.ndarray:
    """The average of channels that are columns."""
    return samples if samples.ndim == 1 else samples.mean(axis=1, dtype=np.float32)


def _widened(stored: memoryview) -> np.ndarray:
    """Integers of 24 bits as the upper part of 32."""
    wide = np.zeros((len(stored) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(stored, np.uint8).reshape(-1, 3)
    return wide.view("<i4")[:, 0]
