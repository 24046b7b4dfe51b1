"""What the checks of engines share: their error, a probe that refuses on demand, which allocations are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from brim.errors import OutOfMemory
from brim.records.memory import MemoryReading


class NotConforming(AssertionError):
    """An engine does not do what Brim expects of it. The message names the check and what was seen."""

    def __init__(self, check: str, seen: str) -> None:
        self.check = check
        super().__init__(f"{check}: {seen}")


@runtime_checkable
class RefusingProbe(Protocol):
    """A probe of a fake device, which refuses the n-th allocation. `FakeDevice` and `CpuProbe` are such."""

    allocations: int
    fail_at: int | None

    def reading(self) -> MemoryReading: ...


@contextmanager
def only_out_of_memory(check: str) -> Iterator[None]:
    """What raises in here must raise `OutOfMemory`."""
    try:
        yield
    except OutOfMemory:
        raise
    except Exception as error:
        raise NotConforming(
            check, f"{type(error).__name__} was raised where OutOfMemory is expected ({error})"
        ) from error


def spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers from 1 to `count`, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(1, count + 1))
    return sorted({1 + round(place * (count - 1) / (most - 1)) for place in range(most)})
