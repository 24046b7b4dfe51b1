"""What is compiled while something runs: Triton kernels that are new to the process, and graphs of torch's compiler.

    with counted() as found:
        engine.generate(...)
    print(found.kernels, found.graphs)

A kernel that Triton finds in its cache on disk counts too: it is loaded, and the caller waits for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Compilations:
    """What was compiled or loaded."""

    kernels: list[str] = field(default_factory=list)  # of Triton, with what they were specialised for
    graphs: int = 0  # of torch's compiler

    @property
    def count(self) -> int:
        return len(self.kernels) + self.graphs


@contextmanager
def counted() -> Iterator[Compilations]:
    """Count until the end."""
    from torch._dynamo.utils import counters
    from triton import knobs

    found = Compilations()

    def note(**what: Any) -> None:
        found.kernels.append(str(what.get("repr", what.get("key", "?")))[:300])

    before, hook = counters["stats"]["unique_graphs"], knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = note
    try:
        yield found
    finally:
        knobs.runtime.jit_post_compile_hook = hook
        found.graphs = counters["stats"]["unique_graphs"] - before
