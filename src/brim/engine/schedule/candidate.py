"""Where a waiting request would begin if it were admitted now."""

from __future__ import annotations

from dataclasses import dataclass

from brim.engine.kv.digests import extend_digests
from brim.engine.kv.host import HostCopy
from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.prefix_matches import PrefixMatch
from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.spans import cut_blocks


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionCandidate:
    """A waiting request, and what it would share and need not compute."""

    sequence: Sequence
    reused: int = 0  # tokens that need not be computed
    finding: PrefixMatch | None = None  # its blocks in the pools
    found: int = 0  # of these, so many from the first on are looked at
    parent: Sequence | None = None  # the answer whose blocks it would share, copy-on-write
    copy: HostCopy | None = None  # in host memory, that it would go on from

    @property
    def digests(self) -> list[bytes]:
        """The content of the blocks that it would share, where they are in the pools."""
        return self.sequence.digests[: self.found]


def as_fork(sequence: Sequence, parent: Sequence) -> AdmissionCandidate:
    """At the last token of a prompt that another answer has computed."""
    return AdmissionCandidate(sequence, reused=sequence.prompt_length - 1, parent=parent)


def from_host(sequence: Sequence, copy: HostCopy, ledger: KvLedger, reuse: bool) -> AdmissionCandidate:
    """Where it was preempted. Blocks whose content is still in the pools are not copied."""
    if not reuse:
        return AdmissionCandidate(sequence, reused=copy.tokens, copy=copy)
    blocks = copy.tokens // ledger.block_size
    return AdmissionCandidate(
        sequence, reused=copy.tokens, finding=_found(sequence, blocks, ledger), found=blocks, copy=copy
    )


def from_cache(sequence: Sequence, ledger: KvLedger) -> AdmissionCandidate:
    """After the longest prefix that is in the pools."""
    usable = (len(sequence.tokens) - 1) // ledger.block_size  # the last token is always computed
    finding = _found(sequence, usable, ledger)
    count = ledger.longest_prefix(finding)
    return AdmissionCandidate(sequence, reused=count * ledger.block_size, finding=finding, found=count)


def _found(sequence: Sequence, blocks: int, ledger: KvLedger) -> PrefixMatch:
    """The first so many blocks of a request in the pools. They are looked up once, while it waits."""
    finding = ledger.still_found(sequence.finding, blocks)
    if finding is None:
        request, size = sequence.request, ledger.block_size
        extend_digests(sequence.digests, sequence.tokens, size, request.salt, request.marks)
        finding = ledger.find(sequence.digests[:blocks], cut_blocks(request.spans, size))
    sequence.finding = finding
    return finding
