"""How many processes prepare long texts and media: as many as the machine's cores and memory allow."""

from __future__ import annotations

import os

from brim.probes.host import available_host_bytes
from brim.units import GIB

_MOST_MEDIA, _MOST_LONG_TEXT = 8, 2
_CORES_OF_A_LONG_TEXT = 8
_MEDIA_BYTES = 2 * GIB  # of a process while it works on the largest image: decoded, as floats, and as patches


def media_processes() -> int:
    """A core is left to the engine and the texts, and memory to everything else."""
    by_memory = available_host_bytes() // (2 * _MEDIA_BYTES)
    return max(1, min(_MOST_MEDIA, cores() - 1, by_memory or _MOST_MEDIA))


def long_text_processes() -> int:
    return max(1, min(_MOST_LONG_TEXT, cores() // _CORES_OF_A_LONG_TEXT))


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
