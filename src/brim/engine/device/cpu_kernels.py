"""The kernels that torch's library for the CPU (oneDNN) compiles: one for each shape of a product, kept for later.

Steps have hundreds of shapes, and by default a thousand kernels are kept in each of two caches, outside of any budget:
300 prompts of mixed lengths took a process with brim-tiny-vl from 537 to 911 MB. With 128 it is 604 MB, and the same
CPU time.
"""

from __future__ import annotations

import os

_KEPT = 128
_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # of oneDNN itself, and of torch's side of it


def keep_few_kernels() -> None:
    """Bound both caches, unless the user has set them in the environment; they look there at their first product."""
    for name in _CAPACITIES:
        os.environ.setdefault(name, str(_KEPT))
