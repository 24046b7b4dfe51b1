"""The content of a full block, as a digest of all tokens up to its end: equal digests, equal keys and values."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_DIGEST_BYTES = 16


def extend_digests(digests: list[bytes], tokens: Sequence[int], block_size: int, salt: bytes) -> None:
    """Append the digests of the full blocks of `tokens` that are not there yet.

    `salt` covers what else the keys depend on: media in the prompt, an adapter.
    """
    previous = digests[-1] if digests else salt
    for number in range(len(digests), len(tokens) // block_size):
        content = array("q", tokens[number * block_size : (number + 1) * block_size])
        previous = blake2b(previous + content.tobytes(), digest_size=_DIGEST_BYTES).digest()
        digests.append(previous)
