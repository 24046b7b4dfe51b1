"""Tokens cut into chunks of equal length and put together again, and how much is left of one token at a later one.

A recurrence runs in chunks: within one, every token reads every earlier token by matrix products; between them, only a
state is passed on. Chunks come first among the dimensions, so that any run of them is one block of memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional


def in_chunks(tensor: Tensor, chunk: int) -> Tensor:
    """[batch, tokens, ...] as [chunks, batch, ..., chunk], zeros behind the last token. A view, if none are needed."""
    by_token = tensor.movedim(1, -1)
    missing = -by_token.shape[-1] % chunk
    if missing:
        by_token = functional.pad(by_token, (0, missing))
    return by_token.view(*by_token.shape[:-1], -1, chunk).movedim(-2, 0)


def from_chunks(chunks: Tensor, tokens: int, dtype: torch.dtype) -> Tensor:
    """[chunks, batch, heads, chunk, dim] as [batch, tokens, heads, dim], without what was added at the end."""
    in_order = chunks.permute(1, 0, 3, 2, 4)
    joined = torch.empty(in_order.shape, dtype=dtype, device=chunks.device).copy_(in_order)
    return joined.flatten(1, 2)[:, :tokens]


def float_copy(tensor: Tensor) -> Tensor:
    """A float32 tensor of our own, without gaps: to be changed in place."""
    return torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device).copy_(tensor)


def decays_between(log_decays: Tensor) -> Tensor:
    """[..., chunk] to [..., later, earlier]: what is left of a token at a later one, and ones above the diagonal.

    The logarithms between two tokens are added up, and never the difference of two sums from the start: where those
    are large, a small difference of them has no digits left.
    """
    chunk = log_decays.shape[-1]
    after = log_decays.unsqueeze(-1).expand(*log_decays.shape, chunk).tril(-1)
    return after.cumsum_(-2).exp_()


def states_in_front(states: Tensor, initial: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Runs of chunks, and the states their tokens find: `initial`, and what the chunk before left behind."""
    if initial is not None:
        yield slice(0, 1), initial.unsqueeze(0)
    if len(states) > 1:
        yield slice(1, None), states[:-1]
