"""Images of requests: refused by their size before anything is decoded."""

from __future__ import annotations

import base64
import struct
import zlib
from io import BytesIO

import pytest

from brim.errors import InvalidRequest
from brim.serve.prepare.images import decode_all
from brim.serve.requests.media import Image
from brim.serve.settings import RequestLimits

pillow = pytest.importorskip("PIL.Image")


def uri(content: bytes, kind: str = "png") -> Image:
    return Image(f"data:image/{kind};base64,{base64.b64encode(content).decode()}", "url")


def png(width: int, height: int) -> bytes:
    written = BytesIO()
    pillow.new("RGB", (width, height), "red").save(written, "PNG")
    return written.getvalue()


def bomb(side: int) -> bytes:
    """A small file whose header promises a huge image."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1_000_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_an_image_is_decoded() -> None:
    image = uri(png(4, 3))
    assert decode_all([image], RequestLimits())[image].size == (4, 3)


def test_all_images_of_a_request_share_the_limit() -> None:
    images = [Image(uri(png(10, 10)).uri, f"image {number}") for number in range(3)]
    assert len(decode_all(images, RequestLimits(image_pixels=300))) == 3
    with pytest.raises(InvalidRequest, match=r"^image 2: .* more than the 99 that are left of 299"):
        decode_all(images, RequestLimits(image_pixels=299))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [6000, 12_000, 60_000])
def test_a_decompression_bomb_dies_at_the_door(side: int) -> None:
    with pytest.raises(InvalidRequest, match=r"pixels, more than|no image that can be read"):
        decode_all([uri(bomb(side))], RequestLimits())


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (uri(b"not an image"), "no image"),
        (uri(png(40, 40)[:60]), "damaged"),
        (Image("data:image/png;base64,????", "url"), "base64 is damaged"),
        (Image("data:text/plain;base64,aGk=", "url"), "must begin like"),
        (Image("data:image/png,raw", "url"), "must begin like"),
        (uri(b"\0" * 3000), "more than the"),
        (uri(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n"), "no image"),
    ],
)
def test_what_is_no_image_is_said(image: Image, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^url: .*{said}"):
        decode_all([image], RequestLimits(image_bytes=2048))


def test_bytes_that_are_no_image_are_told_what_would_be_one() -> None:
    with pytest.raises(InvalidRequest, match=r"^url: it is no image that can be read; send PNG, JPEG, WEBP, GIF$"):
        decode_all([uri(b"no image")], RequestLimits())
