"""The content of a full block, as a digest of all tokens up to its end: equal digests, equal keys and values."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_DIGEST_BYTES = 16

Marks = Sequence[tuple[int, bytes]]  # what stands at which places besides the tokens, as digests


def extend_digests(
    digests: list[bytes], tokens: Sequence[int], block_size: int, salt: bytes, marks: Marks = ()
) -> None:
    """Append the digests of the full blocks of `tokens` that are not there yet.

    `salt` covers what all keys depend on besides the tokens, `marks` what those from a place on depend on: images.
    """
    previous = digests[-1] if digests else salt
    for number in range(len(digests), len(tokens) // block_size):
        start, end = number * block_size, (number + 1) * block_size
        content = array("q", tokens[start:end]).tobytes()
        for place, mark in marks:
            if start <= place < end:
                content += place.to_bytes(8, "little") + mark
        previous = blake2b(previous + content, digest_size=_DIGEST_BYTES).digest()
        digests.append(previous)
