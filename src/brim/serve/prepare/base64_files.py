"""Files that a request brings in base64."""

from __future__ import annotations

import base64
import binascii

from brim.errors import InvalidRequest
from brim.units import format_bytes


def file_of(written: str, named: str, most_bytes: int) -> bytes:
    """The file itself; one that is too large is refused before it is decoded. `named` begins with its field."""
    if len(written) * 3 // 4 > most_bytes + 2:
        raise InvalidRequest(
            f"{named} has {format_bytes(len(written) * 3 // 4)}, more than the {format_bytes(most_bytes)} that are "
            "taken; send a smaller one"
        )
    try:
        return base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{named} cannot be decoded: its base64 is damaged") from None
