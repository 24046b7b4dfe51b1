"""The kernels that torch's library for the CPU (oneDNN) compiles: one for each shape of a product, kept for later.

Steps have hundreds of shapes, and by default a thousand kernels are kept in each of two caches, outside of any budget:
hundreds of MiB even for a tiny model. The shapes that come again and again are among the last 128.
"""

from __future__ import annotations

import os

_KEPT = 128
_CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # of oneDNN itself, and of torch's side of it


def keep_few_kernels() -> None:
    """Bound both caches, unless the user has set them in the environment; they look there at their first product."""
    for name in _CAPACITIES:
        os.environ.setdefault(name, str(_KEPT))
