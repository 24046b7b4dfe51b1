"""What ranks agree on before any of them acts, and an engine of one rank, which agrees with itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol


class Agreement(Protocol):
    """What every rank asks at the same point, and each is answered the same. `ranks.Ranks` asks the others."""

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def most(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        ...

    def all(self, condition: bool) -> bool:
        """Whether it holds on all ranks."""
        ...

    def problem(self, mine: str) -> str:
        """What is wrong on some rank; nothing where all is well everywhere."""
        ...

    def ends_alike(self, what: str) -> AbstractContextManager[None]:
        """A part that each rank runs without the others, and that raises on all of them or on none."""
        ...


class OneRank:
    """An engine that is not split."""

    size = 1

    def most(self, number: int) -> int:
        return number

    def all(self, condition: bool) -> bool:
        return condition

    def problem(self, mine: str) -> str:
        return mine

    def ends_alike(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()


@contextmanager
def each_rank_by_itself(
    ranks: Agreement, alone: Callable[[], AbstractContextManager[None]], what: str
) -> Iterator[None]:
    """Each rank runs this without the others (`alone`), and it ends alike on all of them."""
    if ranks.size == 1:
        yield
        return
    with ranks.ends_alike(what), alone():
        yield
