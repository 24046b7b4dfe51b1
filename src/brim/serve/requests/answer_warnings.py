"""What the answer to a request must say of it: fields that were ignored, or that have no effect here.

Each request has one collector, which `warn` finds by the context that it runs in: the readers of bodies and the
endpoints need not hand it on, and threads that `asyncio` starts for a request have its context. `Answering` writes
what was collected into the answer, and `WarningHeaderApp` into a header of any response.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MOST_WARNINGS = 16
_LONGEST_HEADER = 1024  # bytes


class AnswerWarnings:
    """The warnings of one request: each once, and no more than some."""

    def __init__(self) -> None:
        self._said: dict[str, None] = {}
        self._more = 0

    def add(self, said: str) -> None:
        if said in self._said:
            return
        if len(self._said) < MOST_WARNINGS:
            self._said[said] = None
        else:
            self._more += 1

    @property
    def texts(self) -> list[str]:
        more = [f"and {self._more} more"] if self._more else []
        return [*self._said, *more]

    @property
    def header(self) -> bytes:
        """All of it on one line of ASCII, cut where it is long."""
        return "; ".join(self.texts).encode("unicode_escape")[:_LONGEST_HEADER]


_CURRENT: ContextVar[AnswerWarnings | None] = ContextVar("answer_warnings", default=None)


@contextmanager
def collected_warnings() -> Iterator[AnswerWarnings]:
    """What is warned of inside, by this task and those that it starts."""
    found = AnswerWarnings()
    token = _CURRENT.set(found)
    try:
        yield found
    finally:
        _CURRENT.reset(token)


def current_warnings() -> AnswerWarnings:
    """Those of the request that this is about; new ones, which nobody reads, outside of any."""
    return _CURRENT.get() or AnswerWarnings()


def warn(field: str, said: str) -> None:
    """`field` is the path of a field of the request; `said` what became of it."""
    current_warnings().add(f"{field}: {said}")


def warn_all(said: Iterable[str]) -> None:
    """Whole sentences, each with its field."""
    found = current_warnings()
    for one in said:
        found.add(one)
