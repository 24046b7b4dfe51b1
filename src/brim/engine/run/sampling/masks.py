"""Tokens that a grammar does not allow, on the device: in go bits of the allowed ones, out go scores of minus infinity.

The bits travel packed, a row for each row of scores that has a grammar. On the device they become one byte for each
score, of one slice of the batch at a time (`ROWS_AT_ONCE` of the sampler).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from brim.units import ceil_div

_BITS = (1, 2, 4, 8, 16, 32, 64, 128)


def keep_allowed(scores: Tensor, allowed: Sequence[np.ndarray | None]) -> None:
    """Leave only tokens that the grammar of their row allows; rows of None stay as they are. Changes `scores`."""
    places = [place for place, bits in enumerate(allowed) if bits is not None]
    if not places:
        return
    width = ceil_div(scores.shape[1], len(_BITS))
    packed = np.zeros((len(places), width), dtype=np.uint8)
    for row, place in enumerate(places):
        bits = allowed[place]
        assert bits is not None
        packed[row, : min(width, bits.size)] = bits[:width]
    sent, rows = _sent(packed, scores.device), _sent(np.array(places, dtype=np.int64), scores.device)
    every = torch.full((len(allowed), width), 255, dtype=torch.uint8, device=scores.device).index_copy_(0, rows, sent)
    weights = torch.tensor(_BITS, dtype=torch.uint8, device=scores.device)
    refused = (every.unsqueeze(-1) & weights) == 0
    scores.masked_fill_(refused.view(len(allowed), -1)[:, : scores.shape[1]], -math.inf)


def _sent(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
