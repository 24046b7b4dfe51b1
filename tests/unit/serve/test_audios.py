"""Audio of requests: refused by its header before a sample is read, else at the rate that the model takes."""

from __future__ import annotations

import base64
import struct

import numpy as np
import pytest

from brim.errors import InvalidRequest
from brim.serve.prepare.audios import decode_all
from brim.serve.requests.media import Audio
from brim.serve.settings import RequestLimits

pytest.importorskip("torch")

from brim.engine.media.audio.limits import AudioLimits
from tests.unit.engine.media.audio.test_files import RATE, SOUND, wav

FILE = wav(SOUND[:, None], 16)
SECONDS = len(SOUND) / RATE
DATA = FILE.index(b"data") + 4  # where the size of the samples is
TAGGED = FILE.index(b"fmt ") + 8


def sent(content: bytes, path: str = "data") -> Audio:
    return Audio(base64.b64encode(content).decode(), path)


def patched(offset: int, form: str, *values: int) -> bytes:
    """The file with a lie in its header."""
    return FILE[:offset] + struct.pack(form, *values) + FILE[offset + struct.calcsize(form) :]


def test_audio_comes_at_the_rate_of_the_model_and_in_one_channel() -> None:
    both = np.stack([SOUND, SOUND * 0], axis=1)
    audios = [sent(FILE), sent(wav(both, 32, floats=True), "other")]
    found = decode_all(audios, RequestLimits(), None, RATE)
    assert np.abs(found[audios[0]][0] - SOUND).max() < 1e-4
    assert np.abs(found[audios[1]][0] - SOUND / 2).max() < 1e-6
    (samples, rate) = decode_all(audios[:1], RequestLimits(), None, RATE // 2)[audios[0]]
    assert (len(samples), rate) == (len(SOUND) // 2, RATE // 2)


def test_all_audio_of_a_request_shares_the_limit() -> None:
    audios = [sent(FILE, f"audio {number}") for number in range(3)]
    assert len(decode_all(audios, RequestLimits(audio_seconds=3 * SECONDS), None, RATE)) == 3
    with pytest.raises(InvalidRequest, match=r"^audio 2: .* lasts 0\.03 seconds, more than the 0\.02 that are left"):
        decode_all(audios, RequestLimits(audio_seconds=3 * SECONDS - 0.001), None, RATE)


def test_what_is_longer_than_the_model_takes_is_refused_before_it_is_read() -> None:
    long = wav(np.full((RATE, 1), np.nan, np.float32), 32, floats=True)  # reading it would say that it is not finite
    with pytest.raises(InvalidRequest, match=r"^data: the audio lasts 1\.00 seconds, more than the 0\.5 of the tower"):
        decode_all([sent(long)], RequestLimits(), AudioLimits(50, "the tower", 100.0), RATE)


def test_a_length_that_was_unknown_when_the_file_was_written_is_taken() -> None:
    audio = sent(patched(DATA, "<I", 0xFFFFFFFF))
    assert len(decode_all([audio], RequestLimits(), None, RATE)[audio][0]) == len(SOUND)


@pytest.mark.parametrize(
    ("audio", "said"),
    [
        (sent(patched(DATA, "<I", 4_000_000_000)), r"cut off: its header promises 3\.7\S* GiB .* and 800 B were sent"),
        (sent(FILE[:-1]), "cut off"),
        (sent(patched(TAGGED + 4, "<I", 1)), "sampling rate of 1 Hz; it must be 1000 to 768000"),
        (sent(patched(TAGGED + 4, "<I", 0)), "sampling rate of 0 Hz"),
        (sent(patched(TAGGED + 2, "<H", 65_535)), "no samples"),
        (sent(patched(TAGGED, "<H", 7)), r"WAV file of format 7 with 16 bits; .*ffmpeg"),
        (sent(patched(TAGGED + 2, "<H", 0)), "WAV file of 0 channels"),
        (sent(FILE[: DATA - 8]), "WAV file without its samples"),
        (sent(wav(np.array([[0.5], [np.inf]]), 32, floats=True)), "not finite"),
        (sent(b"ID3\x04 and so on"), r"(is no audio that is read here|is not a WAV file).*ffmpeg"),
        (sent(b"fLaC" + bytes(60)), "(is no audio|is not a WAV file)"),
        (Audio("????", "data"), "base64 is damaged"),
        (sent(wav(np.zeros((4000, 1)), 16)), r"more than the 2\.0 KiB that are taken"),
    ],
)
def test_what_is_no_audio_is_said(audio: Audio, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^data: the audio .*{said}"):
        decode_all([audio], RequestLimits(audio_bytes=2048), None, RATE)
