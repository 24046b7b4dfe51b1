"""What ranks agree on before any of them acts, and an engine of one rank, which agrees with itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from brim.guard.driver import OneRank
from brim.ports import Agreement


class EngineAgreement(Agreement, Protocol):
    """What the ranks of an engine agree on in addition to rescues. `ranks.Ranks` asks the others."""

    def ends_alike(self, what: str) -> AbstractContextManager[None]:
        """A part that each rank runs without the others, and that raises on all of them or on none."""
        ...


class WholeEngine(OneRank):
    """An engine that is not split."""

    def ends_alike(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()


@contextmanager
def each_rank_by_itself(
    ranks: EngineAgreement, alone: Callable[[], AbstractContextManager[None]], what: str
) -> Iterator[None]:
    """Each rank runs this without the others (`alone`), and it ends alike on all of them."""
    if ranks.size == 1:
        yield
        return
    with ranks.ends_alike(what), alone():
        yield
