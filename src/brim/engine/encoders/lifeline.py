"""An encoder does not outlive its engine, also while it starts, or runs a batch, and listens to nobody.

In: the connection to the engine. A thread watches it, and the parent of the process: a copy of the connection in a
process that the engine has forked would keep it open. Not the kernel's signal for the death of a parent: that comes
when the thread ends that has started this process.
"""

from __future__ import annotations

import os
import select
import threading
import time

_LOOK_SECONDS = 0.5
_LEAVE_SECONDS = 1.0  # an encoder that waits for a batch leaves by itself, and gives up its lease


def end_with_engine(connection: int) -> None:
    """End this process soon after its engine has gone, wherever it is; the kernel drops what it holds."""
    threading.Thread(target=_watch, args=(connection, os.getppid()), name="brim-lifeline", daemon=True).start()


def _watch(connection: int, engine_pid: int) -> None:
    hang_up = select.poll()
    hang_up.register(connection, select.POLLRDHUP)
    while os.getppid() == engine_pid and not hang_up.poll(_LOOK_SECONDS * 1000):
        pass
    time.sleep(_LEAVE_SECONDS)
    os._exit(0)
