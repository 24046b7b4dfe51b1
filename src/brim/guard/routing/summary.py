"""Digests of blocks as a summary of bounded size, and whose summaries have the digests of a request.

A pool has as many digests as blocks. A summary keeps those whose lowest bits are 0, with as many bits as it takes to be
small: which ones depends on their content alone, so that a request knows which of its own it can ask for, and a
conversation of any length is found if it is longer than the step between two of them.

`Holders` answers for all replicas at once: a table with a bucket for each part of the digests, and in a bucket some
ways for each replica. One row of it is compared for each digest, whatever the number of digests a replica has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from brim.records.routing import DIGEST_BYTES, PrefixSummary

MOST_DIGESTS = 2048
_BUCKETS = 1024
_WAYS = 8  # of a replica in a bucket; with 2 digests on average, one in 4,000 finds it full
_SPREAD, _LAST = 32, 16  # digests of a request that are looked up: what a decision costs does not grow with a prompt
_SKIPPED_AT_MOST = 48  # bits
_EMPTY = 0

Digests = npt.NDArray[np.uint64]


def summarise(digests: Iterable[bytes], most: int = MOST_DIGESTS) -> PrefixSummary:
    """At most so many of the digests of a pool."""
    whole = np.frombuffer(b"".join([one[:DIGEST_BYTES] for one in digests]), dtype="<u8")
    skipped = 0
    while len(whole) > most and skipped < _SKIPPED_AT_MOST:
        skipped += 1
        whole = whole[(whole & np.uint64((1 << skipped) - 1)) == 0]
    return PrefixSummary(whole[:most].tobytes(), skipped)


class Holders:
    """The summaries of replicas, by number."""

    def __init__(self, replicas: int) -> None:
        self._table = np.zeros((_BUCKETS, _WAYS, replicas), dtype=np.uint64)
        self._skipped = np.zeros(replicas, dtype=np.int64)

    def grow(self, replicas: int) -> None:
        """Make room for so many."""
        more = replicas - self._table.shape[2]
        if more > 0:
            self._table = np.concatenate([self._table, np.zeros((_BUCKETS, _WAYS, more), np.uint64)], axis=2)
            self._skipped = np.concatenate([self._skipped, np.zeros(more, np.int64)])

    def put(self, replica: int, summary: PrefixSummary) -> None:
        """Replace what is known of one replica. Digests that find their bucket full are left out."""
        digests = np.unique(np.frombuffer(summary.digests, dtype="<u8"))
        buckets = _bucket(digests)
        order = np.argsort(buckets, kind="stable")
        digests, buckets = digests[order], buckets[order]
        first_of_bucket = np.searchsorted(buckets, buckets, side="left")
        way = np.arange(len(buckets)) - first_of_bucket
        fits = way < _WAYS
        self._table[:, :, replica] = _EMPTY
        self._table[buckets[fits], way[fits], replica] = digests[fits]
        self._skipped[replica] = summary.skipped_bits

    def prefixes(self, digests: Sequence[int]) -> npt.NDArray[np.int64]:
        """By replica: how many of the first blocks of a request it holds, as far as its summary tells.

        A replica's prefix ends before the first digest that it should have and has not.
        """
        replicas = self._table.shape[2]
        found = np.zeros(replicas, dtype=np.int64)
        if not digests:
            return found
        asked = np.array(digests, dtype=np.uint64)
        for skipped in np.unique(self._skipped).tolist():
            same = self._skipped == skipped
            places = _places(asked, int(skipped))
            if len(places):
                held = self._held(asked[places])[:, same]
                known = np.logical_and.accumulate(held, axis=0).sum(axis=0)
                depths = np.concatenate([[0], places + 1])
                found[same] = depths[known]
        return found

    def _held(self, asked: Digests) -> npt.NDArray[np.bool_]:
        """By digest and replica."""
        return np.asarray((self._table[_bucket(asked)] == asked[:, None, None]).any(axis=1))


def _bucket(digests: Digests) -> npt.NDArray[np.int64]:
    """From the upper bits: the lower ones say whether a digest is in a summary at all."""
    return (digests >> np.uint64(54)).astype(np.int64) % _BUCKETS


def _places(asked: Digests, skipped: int) -> npt.NDArray[np.int64]:
    """Which digests of a request such a summary would have.

    Where they are many, evenly spaced ones, and all of the last: a conversation differs from its last turn at its end.
    """
    places = np.flatnonzero((asked & np.uint64((1 << skipped) - 1)) == 0)
    if len(places) > _SPREAD + _LAST:
        spread = np.linspace(0, len(places) - _LAST - 1, _SPREAD).astype(np.int64)
        places = np.concatenate([places[spread], places[-_LAST:]])
    return places
