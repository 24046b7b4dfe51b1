"""Mamba-2: a state for each head that decays and takes in a token, `state = decay * state + dt * x ⊗ B`, `y = state C`.

Two forms with the arguments of the kernels of `mamba_ssm`: many tokens at once, and one token on a state. Both
compute in float32, read B and C by their groups instead of copying them for every head, and never wait for the
device. Nothing is kept for a backward pass.

What `chunk_scan` holds besides its arguments, at its peak, in bytes for a token:

    4 * heads * (2 * dim + max(chunk, dim * state / chunk))    what is taken in, the output; weights, or states
    + 8 * groups * state                                       B and C
    + 16 * heads                                               time steps and decays

which is 154 KiB for Nemotron Nano 12B v2 (128 heads of 80, 8 groups, a state of 128). A sequence shorter than a chunk
still holds a whole state, 4 * heads * dim * state bytes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from brim.engine.recurrent.scans.chunks import decays_between, float_copy, from_chunks, in_chunks, states_in_front

CHUNK_TOKENS = 128  # about where what is held within chunks and between them is the same


def chunk_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803  (as the models name it)
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    chunk_size: int,
    *,
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """[batch, tokens, heads, dim] in float32, and the state [batch, heads, dim, state] behind the last token."""
    tokens = hidden_states.shape[1]
    chunk = min(chunk_size, CHUNK_TOKENS, tokens)
    steps = in_chunks(_time_steps(dt, dt_bias, dt_softplus).clamp(*dt_limit).float(), chunk)
    output, states = _scan(
        in_chunks(hidden_states, chunk),
        steps,
        (A.float()[:, None] * steps).contiguous(),
        float_copy(in_chunks(B, chunk)),
        float_copy(in_chunks(C, chunk)),
        None if initial_states is None else initial_states.float(),
    )
    last = states[-1].clone() if len(states) > 1 else states[0]
    del states
    result = from_chunks(output, tokens, torch.float32)
    if D is not None:
        result.addcmul_(hidden_states, D[:, None])
    if z is not None:
        result *= functional.silu(z.float())
    return (result, last) if return_final_states else result


def _scan(
    x: Tensor,  # [chunks, batch, heads, dim, chunk]
    steps: Tensor,  # [chunks, batch, heads, chunk], as are
    log_decays: Tensor,
    B: Tensor,  # noqa: N803  [chunks, batch, groups, state, chunk], as is
    C: Tensor,  # noqa: N803
    initial: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What the tokens read, [chunks, batch, heads, chunk, dim], and the states behind each chunk."""
    groups = B.shape[2]
    taken_in = torch.mul(x, steps.unsqueeze(-2), out=torch.empty(x.shape, dtype=torch.float32, device=x.device))
    kept = log_decays.cumsum(-1).exp_()  # of the state in front of the chunk, at each token

    # Within chunks: every token reads those before it, and itself.
    weights = decays_between(log_decays)
    until_end = weights[..., -1, :].clone()
    _by_group(weights, groups).mul_((C.mT @ B).tril_().unsqueeze(3))
    output = weights @ taken_in.mT
    del weights

    # What each chunk leaves behind, and then what all chunks up to it do.
    taken_in *= until_end.unsqueeze(-2)
    states = (_by_group(taken_in, groups).flatten(3, 4) @ B.mT).view(*x.shape[:4], -1)
    del taken_in
    before = initial
    for state, left in zip(states, kept[..., -1, None, None], strict=True):
        if before is not None:
            state.addcmul_(before, left)
        before = state

    # Between chunks: every token reads the state in front of its chunk.
    for here, found in states_in_front(states, initial):
        _read_into(output[here], found, C[here], kept[here])
    return output, states


def _read_into(output: Tensor, states: Tensor, C: Tensor, kept: Tensor) -> None:  # noqa: N803
    """Add what tokens read from a state in front of their chunk, as far as it is left when they do."""
    groups, dim = C.shape[2], states.shape[3]
    read = C.mT @ _by_group(states, groups).flatten(3, 4).mT  # [chunks, batch, groups, chunk, heads * dim]
    by_head = read.view(*read.shape[:-1], -1, dim).transpose(3, 4)
    _by_group(output, groups).addcmul_(by_head, _by_group(kept, groups).unsqueeze(-1))


def _by_group(tensor: Tensor, groups: int, heads: int = 2) -> Tensor:
    """The dimension `heads` as two: groups, and the heads of a group."""
    return tensor.view(*tensor.shape[:heads], groups, -1, *tensor.shape[heads + 1 :])


def state_update(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    *,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
) -> Tensor:
    """One token [batch, heads, dim] on `state` [batch, heads, dim, state], which is changed; what it reads."""
    groups = B.shape[1]
    steps = _time_steps(_once(dt), None if dt_bias is None else _once(dt_bias), dt_softplus).float()
    rates = _once(_once(A).mT).mT.float()
    held = state if state.dtype == torch.float32 else state.float()
    held *= (steps.unsqueeze(-1) * rates).exp()
    by_group = _by_group(held, groups, heads=1)  # [batch, groups, heads, dim, state]
    taken_in = _by_group(hidden_states * steps, groups, heads=1)
    by_group.addcmul_(taken_in.unsqueeze(-1), B.float()[:, :, None, None])
    if held is not state:
        state.copy_(held)
    output: Tensor = (by_group.flatten(2, 3) @ C.float().unsqueeze(-1)).view(hidden_states.shape)
    if D is not None:
        output.addcmul_(hidden_states, D)
    if z is not None:
        output *= functional.silu(z.float())
    return output.to(hidden_states.dtype)


def _once(tensor: Tensor) -> Tensor:
    """The models expand what they have for a head to its last dimension; one of it is enough."""
    return tensor[..., :1] if tensor.stride(-1) == 0 else tensor


def _time_steps(dt: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    """In their own dtype, as `transformers` has them."""
    if bias is not None:
        dt = dt + bias.to(dt.dtype)
    return functional.softplus(dt) if softplus else dt
