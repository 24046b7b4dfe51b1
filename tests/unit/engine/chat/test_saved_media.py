"""Media on disk: a model sees and hears what it did before."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest

from brim.engine.chat.saved_media import audio_entry, audio_of, image_entry, image_of
from brim.engine.media.audio.files import read_audio
from brim.engine.media.reading import read_image

pillow = pytest.importorskip("PIL.Image")

TONE = np.sin(np.arange(3200) / 7) / 2


@pytest.mark.parametrize(
    "samples",
    [
        TONE,
        TONE.astype("f4"),
        (TONE * 32767).astype("i2"),
        (TONE * 127 + 128).astype("u1"),
        np.stack([TONE, -TONE / 3], 1),
    ],
    ids=["f8", "f4", "i2", "u1", "stereo"],
)
def test_samples_sound_the_same(samples: Any) -> None:
    before, rate = read_audio((samples, 16_000), 0)
    after, rate_after = read_audio(audio_of(audio_entry((samples, 16_000))), 0)
    assert rate_after == rate
    np.testing.assert_array_equal(after, before)


def rotated() -> Any:
    written, exif = BytesIO(), pillow.Exif()
    exif[0x112] = 6
    pillow.new("RGB", (64, 32), (255, 0, 0)).save(written, "JPEG", exif=exif)
    return pillow.open(BytesIO(written.getvalue()))


@pytest.mark.parametrize(
    "image", [rotated(), *(pillow.new(mode, (8, 4), 3) for mode in ("RGB", "RGBA", "P", "L", "F", "CMYK", "I;16"))]
)
def test_images_look_the_same(image: Any) -> None:
    before, after = read_image(image, 0), read_image(image_of(image_entry(image)), 0)
    assert after.size == before.size
    assert after.tobytes() == before.tobytes()
