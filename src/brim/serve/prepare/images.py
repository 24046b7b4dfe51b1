"""Images of a request: data URIs in, images of a bounded size out. Decompression bombs are refused by their header."""

from __future__ import annotations

import base64
import binascii
import re
from io import BytesIO
from typing import Any

from brim.errors import InvalidRequest, first_line
from brim.serve.asked.dialogue import Image
from brim.serve.settings import Limits
from brim.units import format_bytes

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_URI = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)


def decode(image: Image, limits: Limits) -> Any:
    """A PIL image with all its pixels read."""
    content = _content(image, limits)
    try:
        from PIL import Image as Pillow
    except ImportError:
        raise InvalidRequest(f"{image.path}: reading images needs Pillow: pip install pillow") from None
    try:
        opened = Pillow.open(BytesIO(content), formats=FORMATS)
    except Exception as error:  # noqa: BLE001 - whatever a decoder says about foreign bytes
        raise InvalidRequest(f"{image.path}: it is no image that can be read ({first_line(error)})") from None
    width, height = opened.size
    if width * height > limits.image_pixels:
        raise InvalidRequest(
            f"{image.path}: the image has {width} × {height} pixels, more than the {limits.image_pixels} that are "
            "taken; send a smaller one"
        )
    try:
        opened.load()
    except Exception as error:  # noqa: BLE001 - the same
        raise InvalidRequest(f"{image.path}: the image is damaged ({first_line(error)})") from None
    return opened


def _content(image: Image, limits: Limits) -> bytes:
    begin = _URI.match(image.uri)
    if begin is None:
        raise InvalidRequest(f"{image.path}: a data URI must begin like data:image/png;base64,")
    written = image.uri[begin.end() :]
    if len(written) * 3 // 4 > limits.image_bytes + 2:
        raise InvalidRequest(
            f"{image.path}: the image has {format_bytes(len(written) * 3 // 4)}, more than the "
            f"{format_bytes(limits.image_bytes)} that are taken; send a smaller one"
        )
    try:
        return base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{image.path}: its base64 is damaged") from None
