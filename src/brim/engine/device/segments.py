"""Expandable segments of torch's allocator."""

from __future__ import annotations

import os

_BY_THE_USER = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def let_segments_grow() -> bool:
    """Turn expandable segments on, which waste less memory; not where the environment sets the allocator. True: on."""
    import torch

    if any(name in os.environ for name in _BY_THE_USER):
        return False
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    return True
