"""Images of a request: data URIs in, images of a bounded size out. Decompression bombs are refused by their header."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from brim.errors import InvalidRequest, first_line
from brim.serve.prepare.base64_files import file_of
from brim.serve.prepare.jobs import SeenImage
from brim.serve.requests.media import Image
from brim.serve.settings import RequestLimits

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_URI = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)


def decode_all(images: Sequence[Image], limits: RequestLimits, known: Mapping[str, SeenImage] = {}) -> dict[Image, Any]:
    """PIL images with all their pixels read; None for those that are known by their URI."""
    found: dict[Image, Any] = {}
    left = limits.image_pixels
    for image in images:
        seen = known.get(image.uri)
        if seen is not None:
            _check_pixels(image, f"{seen.file_pixels}", seen.file_pixels, left, limits.image_pixels)
            found[image], pixels = None, seen.file_pixels
        else:
            found[image] = _decode(image, _content(image, limits), left, limits.image_pixels)
            pixels = found[image].width * found[image].height
        left -= pixels
    return found


def _check_pixels(image: Image, said: str, pixels: int, left: int, limit: int) -> None:
    if pixels > left:
        raise InvalidRequest(
            f"{image.path}: the image has {said} pixels, more than the {left} that are left of {limit} for all images "
            "of a request; send smaller ones"
        )


def _decode(image: Image, content: bytes, left: int, limit: int) -> Any:
    try:
        from PIL import Image as Pillow
        from PIL import UnidentifiedImageError
    except ImportError:
        raise InvalidRequest(f"{image.path}: reading images needs Pillow: pip install pillow") from None
    try:
        opened = Pillow.open(BytesIO(content), formats=FORMATS)
    except UnidentifiedImageError:  # its text is the address of an object
        raise InvalidRequest(f"{image.path}: it is no image that can be read; send {', '.join(FORMATS)}") from None
    except Exception as error:  # noqa: BLE001 - whatever a decoder says about foreign bytes
        raise InvalidRequest(f"{image.path}: it is no image that can be read ({first_line(error)})") from None
    width, height = opened.size
    _check_pixels(image, f"{width} × {height}", width * height, left, limit)
    try:
        opened.load()
    except Exception as error:  # noqa: BLE001 - the same
        raise InvalidRequest(f"{image.path}: the image is damaged ({first_line(error)})") from None
    return opened


def _content(image: Image, limits: RequestLimits) -> bytes:
    begin = _URI.match(image.uri)
    if begin is None:
        raise InvalidRequest(f"{image.path}: a data URI must begin like data:image/png;base64,")
    return file_of(image.uri[begin.end() :], f"{image.path}: the image", limits.image_bytes)
