"""Replicas of one kind that start on one machine at the same moment: one of them searches, the others validate.

The first holds a lock on a file beside the stored fits while it fits. Those that find it taken wait until it is free,
and then fit at once, all of them: the size is in the store by then. A process that dies gives its lock up.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from brim.errors import InvalidRequest
from brim.folders import fits_folder
from brim.records.fit import FitReport
from brim.records.progress import Stage, Told
from brim.serve.service import Loaded, Starter


@contextmanager
def first_or_after(path: Path) -> Iterator[bool]:
    """Whether this process is the first; if not, the first has finished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first = True
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)  # with all the others that wait
            first = False
            fcntl.flock(file, fcntl.LOCK_UN)
        yield first
    finally:
        os.close(file)


@dataclass(frozen=True, slots=True)
class FirstFits:
    """A starter whose fits are made once for each kind of replica."""

    starter: Starter
    words: Sequence[str]  # the command line of the replica: the same for all of a kind

    def load(self, told: Told) -> Loaded:
        loaded = self.starter.load(told)
        if isinstance(loaded, Loaded):
            return loaded
        raise InvalidRequest(
            f"replicas: a model that is served to {loaded.engine.model.task} is not routed; start a server for each GPU"
        )

    def fit(self, loaded: Loaded, told: Told) -> FitReport | None:
        told(Stage("fit", "after other replicas of this kind"))
        name = blake2b("\0".join(self.words).encode(), digest_size=8).hexdigest()
        with first_or_after(fits_folder() / f"replicas-{name}.lock"):
            return self.starter.fit(loaded, told)
