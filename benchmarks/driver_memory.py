"""Memory of a GPU, taken from its driver past torch: for neighbours and ballasts."""

from __future__ import annotations

import ctypes

_SMALLEST = 2 << 20  # what a driver hands out at least


class Driver:
    """Takes memory and gives it back. torch does not count it, and nothing of it is cached."""

    def __init__(self) -> None:
        import torch

        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self._library = ctypes.CDLL("libcuda.so.1")
        self._free_bytes = torch.cuda.mem_get_info

    def take_all(self, but: int = 0) -> tuple[list[int], int]:
        """Pieces of what is free, the largest first, but for so many bytes; their addresses, and how much they are."""
        held, taken, size = [], 0, self._left(but)
        while size >= _SMALLEST:
            address = ctypes.c_uint64()
            if self._library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0:
                held.append(address.value)
                taken += size
            else:
                size = size // 2 // _SMALLEST * _SMALLEST
            size = min(size, self._left(but))
        return held, taken

    def _left(self, but: int) -> int:
        return max(0, self._free_bytes()[0] - but) // _SMALLEST * _SMALLEST

    def release(self, held: list[int]) -> None:
        for address in held:
            self._library.cuMemFree_v2(ctypes.c_uint64(address))
