"""Faults at chosen points of a step: at every torch operation, and at every call of the engine's own code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import brim.engine

OURS = str(Path(brim.engine.__file__).parent)
# Where records change. These cannot fail, and interrupts are held back from them; nothing else is spared.
COMMITTING = {"commit", "abandon", "_take_back", "_record", "_end_overdue", "accept", "_settle", "finish", "restart"}


class Injected(Exception):
    """Any other error."""


def out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB: injected")


def other() -> None:
    raise Injected("injected")


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


KINDS: tuple[Callable[[], None], ...] = (out_of_memory, other, interrupt)
EXPECTED = (torch.OutOfMemoryError, Injected, KeyboardInterrupt)


class Faults:
    """Counts the points that a step comes by, and raises at some of them."""

    def __init__(self, at: Collection[int] = (), kind: Callable[[], None] = other) -> None:
        self.at = frozenset(at)
        self.kind = kind
        self.points = 0
        self._spared = 0  # depth of calls that are committing

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._spared = 0
        with _Operations(self):  # type: ignore[no-untyped-call]
            sys.setprofile(self._profile)
            try:
                yield
            finally:
                sys.setprofile(None)

    def point(self) -> None:
        self.points += 1
        if self.points in self.at:
            self.kind()

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            return
        committing = code.co_name in COMMITTING
        if event == "call":
            if self.kind is interrupt or not (self._spared or committing):
                self.point()
            self._spared += committing
        elif event == "return":
            self._spared -= committing


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, faults: Faults) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._faults = faults

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._faults.point()
        return function(*args, **(kwargs or {}))
