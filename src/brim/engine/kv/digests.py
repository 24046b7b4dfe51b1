"""The content of a full block, as a digest of all tokens up to its end: equal digests, equal keys and values."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from operator import itemgetter

_DIGEST_BYTES = 16

Marks = Sequence[tuple[int, bytes]]  # what is at which positions besides the tokens, as digests; in order of place


def extend_digests(
    digests: list[bytes], tokens: Sequence[int], block_size: int, salt: bytes, marks: Marks = ()
) -> None:
    """Append the digests of the full blocks of `tokens` that are not there yet.

    `salt` covers what all keys depend on besides the tokens, `marks` what those from a place on depend on: images.
    """
    previous = digests[-1] if digests else salt
    place_of = itemgetter(0)
    mark = bisect_left(marks, len(digests) * block_size, key=place_of)  # the next one; they are in order
    for number in range(len(digests), len(tokens) // block_size):
        start, end = number * block_size, (number + 1) * block_size
        content = array("q", tokens[start:end]).tobytes()
        while mark < len(marks) and marks[mark][0] < end:
            content += marks[mark][0].to_bytes(8, "little") + marks[mark][1]
            mark += 1
        previous = blake2b(previous + content, digest_size=_DIGEST_BYTES).digest()
        digests.append(previous)
