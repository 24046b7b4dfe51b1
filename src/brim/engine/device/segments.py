"""How torch's allocator asks a GPU for memory."""

from __future__ import annotations

import os

_BY_THE_USER = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def let_segments_grow() -> None:
    """Segments that grow leave less unused at the end of a card. What the user has set in the environment stays."""
    import torch

    if not any(name in os.environ for name in _BY_THE_USER):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
