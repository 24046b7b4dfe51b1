"""Expandable segments of torch's allocator."""

from __future__ import annotations

import os

_BY_THE_USER = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def let_segments_grow() -> None:
    """Turn expandable segments on, which waste less memory, unless the user has set them in the environment."""
    import torch

    if not any(name in os.environ for name in _BY_THE_USER):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
