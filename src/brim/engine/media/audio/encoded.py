"""Audio files other than WAV (mp3, flac, ogg), by `soundfile`, which brings the decoders of libsndfile along.

In: the bytes of a file. Out: what its header says, and the samples of one channel, decoded piece by piece up to a
number that the caller allows: what a header promises is never believed, and a small file may hold hours of silence.
Errors are `AudioNotDecoded`, with words that follow the name of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np

from brim.engine.media.audio.wav import one_channel
from brim.errors import first_line

ENCODED_FORMATS = ("mp3", "flac", "ogg")
_PIECE_FRAMES = 1 << 16
_MOST_CHANNELS = 32


class AudioNotDecoded(Exception):
    """The bytes are no file that can be read, and why."""


@dataclass(frozen=True, slots=True)
class EncodedAudio:
    """A file whose header was read."""

    file: Any
    rate: int
    frames: int  # by the header

    @property
    def seconds(self) -> float:
        return self.frames / self.rate

    def samples(self, most_frames: int) -> np.ndarray:
        """As floats of one channel, the average of all; refused where there are more."""
        pieces, left = [], most_frames
        try:
            while len(piece := self.file.read(_PIECE_FRAMES, dtype="float32", always_2d=True)):
                left -= len(piece)
                if left < 0:
                    raise AudioNotDecoded(f"has more than {most_frames:,} samples, which its header does not say")
                pieces.append(one_channel(piece))
        except RuntimeError as error:
            raise AudioNotDecoded(f"is damaged: {first_line(error)}") from None
        return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def open_encoded(content: bytes) -> EncodedAudio:
    """The header of a file, with its samples undecoded."""
    try:
        library = import_module("soundfile")
    except (ImportError, OSError):  # OSError: it is there, and its C library is not
        raise AudioNotDecoded(
            "is not a WAV file, and others need soundfile: pip install soundfile, or convert it "
            "(ffmpeg -i FILE -c:a pcm_s16le audio.wav)"
        ) from None
    try:
        file = library.SoundFile(BytesIO(content))
    except RuntimeError:
        raise AudioNotDecoded(
            f"is no audio that is read here: WAV, {', '.join(ENCODED_FORMATS)}; convert it "
            "(ffmpeg -i FILE -c:a pcm_s16le audio.wav)"
        ) from None
    if not 1 <= file.channels <= _MOST_CHANNELS:
        raise AudioNotDecoded(f"has {file.channels} channels; at most {_MOST_CHANNELS} are read")
    return EncodedAudio(file, int(file.samplerate), max(0, int(file.frames)))
