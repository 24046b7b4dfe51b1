"""An error at a chosen call of the engine's own code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import brim.engine

ENGINE = str(Path(brim.engine.__file__).parent)


class Stopped(Exception):
    pass


def stopped_at(
    number: int, work: Callable[[], Any], folder: str = ENGINE, spared: frozenset[str] = frozenset()
) -> bool:
    """Raise at the so many-th call of code in this folder; False if there are not so many. `spared` cannot fail."""
    calls = depth = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls, depth
        code = frame.f_code
        if not code.co_filename.startswith(folder) or code.co_flags & inspect.CO_GENERATOR:  # closed, it cannot raise
            return
        inside = code.co_name in spared
        if event == "call":
            depth += inside
            calls += not depth
            if calls == number and not depth:
                raise Stopped
        elif event == "return":
            depth -= inside

    sys.setprofile(profile)
    try:
        work()
    except Stopped:
        return True
    finally:
        sys.setprofile(None)
    return False
