"""WAV files of every kind that is read, samples as they are given, and what is refused."""

from __future__ import annotations

import struct
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.engine.media.audio.encoded import AudioNotDecoded, open_encoded
from brim.engine.media.audio.files import at_rate, read_audio
from brim.engine.media.audio.resample import _ratio
from brim.errors import InvalidRequest

RATE = 16_000
SOUND = np.sin(np.arange(400) / 9).astype(np.float32) * 0.5


def wav(samples: np.ndarray, bits: int, *, floats: bool = False, extensible: bool = False, more: bytes = b"") -> bytes:
    """A WAV file of [samples, channels] between -1 and 1, written by hand."""
    channels = samples.shape[1]
    if floats:
        body = samples.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        body = np.round(samples * 127 + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(samples * (2 ** (bits - 1) - 1)).astype("<i8")
        body = whole[..., None].view(np.uint8)[..., : bits // 8].tobytes()
    tag = 3 if floats else 1
    align = channels * bits // 8
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, RATE, RATE * align, align, bits)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 0, tag) + bytes(14)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + more + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@pytest.mark.parametrize(
    ("bits", "kind", "off"),
    [
        (8, {}, 1e-2),
        (16, {}, 1e-4),
        (24, {}, 1e-6),
        (32, {}, 1e-6),
        (32, {"floats": True}, 0),
        (64, {"floats": True}, 0),
        (16, {"extensible": True}, 1e-4),
        (16, {"more": b"LIST\x03\0\0\0abc\0"}, 1e-4),  # a chunk of an odd size before the samples
    ],
)
def test_wav_files(bits: int, kind: dict[str, Any], off: float, tmp_path: Path) -> None:
    content = wav(SOUND[:, None], bits, **kind)
    (tmp_path / "one.wav").write_bytes(content)
    for source in (content, tmp_path / "one.wav", str(tmp_path / "one.wav")):
        samples, rate = read_audio(source, 0)
        assert rate == RATE
        assert samples.dtype == np.float32
        assert np.abs(samples - SOUND).max() <= off


def test_channels_are_averaged() -> None:
    both = np.stack([SOUND, -SOUND / 2], axis=1)
    for source in (wav(both, 32, floats=True), (both, RATE)):
        assert np.allclose(read_audio(source, 0)[0], SOUND / 4, atol=1e-7)


def test_integers_are_parts_of_their_largest() -> None:
    given = (SOUND * 32768).astype(np.int16)
    assert np.abs(read_audio((given, 8000), 0)[0] - SOUND).max() < 1e-4
    assert read_audio((np.array([0, 128, 255], np.uint8), 8000), 0)[0].tolist() == [-1.0, 0.0, 127 / 128]


@pytest.mark.parametrize(
    ("audio", "says"),
    [
        (SOUND, "audio 3 is a ndarray; give a path"),
        ((SOUND, 10), "sampling rate of 10 Hz"),
        ((SOUND, "fast"), "not samples with their rate"),
        ((SOUND[None, None], RATE), "it must be"),
        ((np.array(["a"]), RATE), "it must be"),
        ((SOUND[:0], RATE), "no samples"),
        ((np.array([0.0, np.nan]), RATE), "not finite"),
        ("nowhere.wav", "cannot be read: No such file"),
        (wav(SOUND[:, None], 16)[:44], "no samples"),
        (wav(SOUND[:, None], 16)[:30], "WAV file without its samples"),
        (wav(SOUND[:, None], 16).replace(b"\x01\0\x01\0", b"\x07\0\x01\0", 1), "WAV file of format 7 with 16 bits"),
        (b"ID3 and so on", "is not a WAV file, and others need soundfile: pip install soundfile, or convert it"),
    ],
)
def test_what_cannot_be_read_is_refused(audio: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)  # as where it is not installed
    with pytest.raises(InvalidRequest, match=says):
        read_audio(audio, 3)


@pytest.mark.parametrize(
    ("form", "subtype", "off"), [("FLAC", None, 1e-4), ("OGG", "VORBIS", 0.1), ("OGG", "OPUS", 0.1), ("MP3", None, 0.1)]
)
def test_other_formats_by_soundfile(form: str, subtype: str | None, off: float) -> None:
    library = pytest.importorskip("soundfile")
    tone = (np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE) / 2).astype(np.float32)
    file = BytesIO()
    library.write(file, np.stack([tone, tone], axis=1), RATE, format=form, subtype=subtype)
    samples, rate = read_audio(file.getvalue(), 0)
    assert (len(samples), rate) == (len(tone), RATE)
    middle = slice(RATE // 4, -RATE // 4)
    assert np.abs(samples - tone)[middle].max() < off
    with pytest.raises(InvalidRequest, match=r"audio 0 is (damaged|no audio)|has no samples"):
        read_audio(file.getvalue()[:60], 0)


def test_no_more_is_decoded_than_is_allowed() -> None:
    library = pytest.importorskip("soundfile")
    file = BytesIO()
    library.write(file, np.zeros(100 * RATE, np.float32), RATE, format="FLAC")
    assert len(file.getvalue()) < 50_000  # silence takes no room
    assert len(open_encoded(file.getvalue()).samples(100 * RATE)) == 100 * RATE
    with pytest.raises(AudioNotDecoded, match="more than 1,600 samples"):
        open_encoded(file.getvalue()).samples(1_600)


@pytest.mark.parametrize(("rate", "wanted"), [(44_100, 16_000), (48_000, 16_000), (8_000, 16_000), (22_050, 16_000)])
def test_another_rate_is_the_same_sound(rate: int, wanted: int) -> None:
    tone, middle = 1_700, slice(400, -400)
    found = at_rate(np.sin(2 * np.pi * tone * np.arange(rate // 2) / rate), rate, wanted)
    assert len(found) == wanted // 2
    assert np.abs(found - np.sin(2 * np.pi * tone * np.arange(wanted // 2) / wanted))[middle].max() < 1e-5


@settings(deadline=None, max_examples=20)
@given(st.integers(1_000, 768_000), st.integers(1, 200))
def test_odd_rates_take_no_more_work_and_keep_the_length(rate: int, samples: int) -> None:
    up, down = _ratio(rate, RATE)
    assert min(up, down) <= max(up, down) <= 2_000
    assert abs(up / down * rate / RATE - 1) < 2.9e-4  # half a cent
    found, exact = len(at_rate(np.zeros(samples, np.float32), rate, RATE)), samples * RATE / rate
    assert exact * (1 - 2.9e-4) <= found < exact + 1


def test_what_the_lower_rate_cannot_hold_is_silent() -> None:
    rate, wanted = 44_100, 16_000
    found = at_rate(np.sin(2 * np.pi * 9_000 * np.arange(rate) / rate), rate, wanted)
    assert np.abs(found)[400:-400].max() < 1e-4
    assert at_rate(SOUND, RATE, RATE) is SOUND
