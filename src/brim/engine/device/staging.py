"""Small integers for the device: one copy a step, from pinned memory.

A buffer is reused only after its copy has finished: buffers take turns, and each waits for its own copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_TURNS = 32  # enough for several steps: the host does not wait for the copy of a queued step


class Staging:
    """Sends arrays of integers to a device in one copy."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = device.type == "cuda"
        self._buffers: list[torch.Tensor] = []
        self._copied: list[torch.cuda.Event] = []
        self._turn = 0

    def send(self, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """The arrays (int64) as tensors on the device; views of one tensor."""
        sizes = [array.size for array in arrays]
        if not self._pinned:
            joined = torch.from_numpy(np.concatenate(arrays)).to(self._device)
        else:
            joined = self._send_pinned(arrays, sum(sizes))
        return list(torch.split(joined, sizes))

    def _send_pinned(self, arrays: Sequence[np.ndarray], total: int) -> torch.Tensor:
        turn = self._turn = (self._turn + 1) % _TURNS
        while len(self._buffers) <= turn:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._buffers.append(torch.empty(0, dtype=torch.int64))
            self._copied.append(copied)
        self._copied[turn].synchronize()
        if self._buffers[turn].numel() < total:
            self._buffers[turn] = torch.empty(2 * total, dtype=torch.int64, pin_memory=True)
        buffer = self._buffers[turn][:total]
        np.concatenate(arrays, out=buffer.numpy())
        sent = buffer.to(self._device, non_blocking=True)
        self._copied[turn].record()
        return sent
