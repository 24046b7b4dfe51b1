"""What drafts tokens (`Proposer`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from brim.engine.requests.sequence import Sequence


class Proposer(Protocol):
    """Guesses how texts go on. A wrong guess costs a row of a step, and never changes a text."""

    def has_one(self, sequence: Sequence) -> bool:
        """Whether it may have a draft for this request. The last token may not have been read yet."""
        ...

    def propose(self, depths: Mapping[Sequence, int]) -> dict[Sequence, tuple[int, ...]]:
        """Drafts of up to so many tokens for these requests, all of whose tokens are known."""
        ...

    def is_predicted(self, sequence: Sequence) -> bool:
        """Whether its last draft was a part of what its client predicts."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """This request has ended, or was preempted."""
        ...
