"""Where a waiting request would begin if it were admitted now."""

from __future__ import annotations

from dataclasses import dataclass

from brim.engine.kv.digests import extend_digests
from brim.engine.kv.host import HostCopy
from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.spans import whole_spans


@dataclass(frozen=True, slots=True, eq=False)
class Prospect:
    """A waiting request, and what it would share and need not compute."""

    sequence: Sequence
    reused: int = 0  # tokens that need not be computed
    digests: tuple[bytes, ...] = ()  # the content of the blocks they are in
    parent: Sequence | None = None  # the answer whose blocks it would share, copy-on-write
    copy: HostCopy | None = None  # in host memory, that it would go on from


def as_fork(sequence: Sequence, parent: Sequence) -> Prospect:
    """At the last token of a prompt that another answer has computed."""
    return Prospect(sequence, reused=sequence.prompt_length - 1, parent=parent)


def from_host(sequence: Sequence, copy: HostCopy, block_size: int, reuse: bool) -> Prospect:
    """Where it was preempted. Blocks whose content is still in the pools are not copied."""
    request = sequence.request
    extend_digests(sequence.digests, sequence.tokens, block_size, request.salt, request.marks)
    known = sequence.digests[: copy.tokens // block_size] if reuse else []
    return Prospect(sequence, reused=copy.tokens, digests=tuple(known), copy=copy)


def from_cache(sequence: Sequence, ledger: KvLedger) -> Prospect:
    """After the longest prefix that is in the pools."""
    size = ledger.block_size
    extend_digests(sequence.digests, sequence.tokens, size, sequence.request.salt, sequence.request.marks)
    usable = (len(sequence.tokens) - 1) // size  # the last token is always computed
    count = ledger.longest_prefix(sequence.digests[:usable])
    while (whole := whole_spans(sequence.request.spans, 0, count * size)) != count * size:
        count = ledger.longest_prefix(sequence.digests[: whole // size])  # a shorter one has its own windows to find
    return Prospect(sequence, reused=count * size, digests=tuple(sequence.digests[:count]))
