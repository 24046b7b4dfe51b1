"""Interrupts deferred while records change, so that none of them is left half changed.

Python raises `KeyboardInterrupt` between any two instructions of the main thread. Inside `held` it is deferred to the
end; inside a nested `allow` it is raised at once. Other threads are not interrupted, and there both do nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Interrupts:
    """Defers the interrupts of one engine."""

    def __init__(self) -> None:
        self._handler: _Handler = None  # the previous handler; None: interrupts are not deferred
        self._noted: list[tuple[int, FrameType | None]] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Interrupts in here are raised at its end, also if another error ends it."""
        handler = signal.getsignal(signal.SIGINT)
        if self._handler is not None or not callable(handler) or not _in_main_thread():
            yield  # held already, or nothing that could raise
            return
        try:
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)
            yield
        finally:
            signal.signal(signal.SIGINT, handler)
            self._handler = None
            self._tell(handler)

    @contextmanager
    def allow(self) -> Iterator[None]:
        """Interrupts are raised at once in here, also one that was deferred."""
        handler = self._handler
        if handler is None:
            yield
            return
        assert callable(handler)
        try:
            signal.signal(signal.SIGINT, handler)
            self._tell(handler)
            yield
        finally:
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append((number, frame))

    def _tell(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        if self._noted:
            noted, self._noted = self._noted[0], []
            handler(*noted)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
