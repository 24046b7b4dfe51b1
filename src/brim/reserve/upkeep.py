"""A thread that looks after the files of a lease for as long as it is held.

Cleaners of /tmp delete what nobody has used for days, and a lock does not stop them. So a holder touches its files, and
publishes its lease again where they are gone. A process that became another program (`brim hold`) has no such thread:
its lease is found by what it has open (`lost`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from brim.errors import DeviceError

LOOK_SECONDS = 5.0


def kept_up(renew: Callable[[], None], ended: threading.Event) -> None:
    """Call `renew` from time to time, until the lease has ended."""

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            try:
                renew()
            except DeviceError:
                continue  # a full disk, or a ledger that somebody keeps locked: the next look may find it better

    threading.Thread(target=look, name="brim-lease", daemon=True).start()
