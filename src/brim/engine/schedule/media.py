"""What the scheduler asks about a request's media: are their features there?"""

from __future__ import annotations

from typing import Protocol

from brim.engine.requests.sequence import Sequence


class MediaGate(Protocol):
    """Knows which features have been made."""

    @property
    def arrivals(self) -> int:
        """Changes whenever a request may have become ready."""
        ...

    def waits(self, sequence: Sequence) -> bool:
        """Whether a request has asked for features that are not there yet. Asked of every waiting request."""
        ...

    def ready(self, sequence: Sequence, start: int) -> bool:
        """Whether the features of its tokens from `start` on are there; if not, they are asked for."""
        ...


class NoWaiting:
    """Features are made in the step that needs them."""

    arrivals = 0

    def waits(self, sequence: Sequence) -> bool:
        return False

    def ready(self, sequence: Sequence, start: int) -> bool:
        return True
