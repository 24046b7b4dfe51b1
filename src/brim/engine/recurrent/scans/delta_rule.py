"""The gated delta rule: a state for each head that decays and is corrected by each token.

For a token with key k, value v, decay g and rate b, `state = exp(g) * state`, then `state += k ⊗ b * (v - k state)`,
and `y = q state`. Two forms with the arguments of the kernels of `fla`: many tokens at once, and one token on a state.
A head of queries and keys may serve several heads of values, those that follow one another. Both forms compute in
float32 and never wait for the device. Nothing is kept for a backward pass.

What `chunk_rule` holds besides its arguments, at its peak, in bytes for a token:

    4 * heads * (2 * key + value + key)              queries, keys; what is written and erased
    + 4 * heads * key * (value + key) / chunk        states, and how chunks change them
    + 4 * heads * (chunk + 5)                        what tokens read of each other; rates and decays

which is 137 KiB for Qwen3-Next (32 heads of 128 and 128). A sequence shorter than a chunk still holds a whole state,
4 * heads * key * value bytes, and as much again where it has a past.
"""

from __future__ import annotations

import torch
from torch import Tensor

from brim.engine.recurrent.scans.chunks import decays_between, float_copy, from_chunks, in_chunks, states_in_front

CHUNK_TOKENS = 64
_NORM_EPS = 1e-6  # as in `fla`


def chunk_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = CHUNK_TOKENS,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """[batch, tokens, heads, value] in the dtype of the query, and the state [batch, heads, key, value] at the end."""
    tokens = query.shape[1]
    query, key = _for_each_value(query, value), _for_each_value(key, value)
    chunk = min(chunk_size, CHUNK_TOKENS, tokens)
    output, states = _rule(
        _scaled(_prepared(query, chunk, use_qk_l2norm_in_kernel), scale),
        _prepared(key, chunk, use_qk_l2norm_in_kernel),
        _prepared(value, chunk),
        in_chunks(g.float(), chunk).contiguous(),
        in_chunks(beta.float(), chunk),
        None if initial_state is None else initial_state.float(),
    )
    last = None
    if output_final_state:
        last = states[-1].clone() if len(states) > 1 else states[0]
    del states
    return from_chunks(output, tokens, query.dtype), last


def _rule(
    queries: Tensor,  # [chunks, batch, heads, chunk, key], as are
    keys: Tensor,
    values: Tensor,  # [chunks, batch, heads, chunk, value]
    log_decays: Tensor,  # [chunks, batch, heads, chunk], as are
    rates: Tensor,
    initial: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What the tokens read, [chunks, batch, heads, chunk, value], and the states behind each chunk."""
    kept = log_decays.cumsum(-1).exp_()  # of the state in front of the chunk, at each token
    decays = decays_between(log_decays)
    until_end = decays[..., -1, :].clone()
    reads = (queries @ keys.mT).mul_(decays).tril_()

    # Within chunks: a correction depends on those before it. Solved for all at once, they are products with what is
    # corrected towards (`written`, on an empty state) and with what is there (`erased`, times the state in front).
    system = (keys @ keys.mT).mul_(decays).mul_(rates.unsqueeze(-1))
    del decays
    one = torch.eye(system.shape[-1], device=system.device)
    solved = torch.linalg.solve_triangular(system, one, upper=False, unitriangular=True)
    del system
    solved *= rates.unsqueeze(-2)
    written = solved @ values
    del values
    solved *= kept.unsqueeze(-2)
    erased = solved @ keys
    del solved

    # What each chunk leaves behind, and then what all chunks up to it do: a chunk changes a state by one product.
    keys *= until_end.unsqueeze(-1)
    states = keys.mT @ written
    first = int(initial is None)  # the first chunk that finds a state
    changes = (keys[first:].mT @ erased[first:]).neg_()
    changes.diagonal(dim1=-2, dim2=-1).add_(kept[first:, ..., -1:])
    del keys
    by_head = states.flatten(1, 2)
    before = by_head[0] if initial is None else initial.flatten(0, 1)
    for state, change in zip(by_head[first:], changes.flatten(1, 2), strict=True):
        before = state.baddbmm_(change, before)
    del changes

    # Between chunks: what is in the state in front counts against what is written, and every token reads it.
    queries *= kept.unsqueeze(-1)
    for here, found in states_in_front(states, initial):
        _flat(written[here]).baddbmm_(_flat(erased[here]), _flat(found), alpha=-1)
    output = reads @ written
    for here, found in states_in_front(states, initial):
        _flat(output[here]).baddbmm_(_flat(queries[here]), _flat(found))
    return output, states


def recurrent_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As `chunk_rule`; one token on a state takes less this way."""
    if query.shape[1] > 1 or initial_state is None:
        return chunk_rule(
            query,
            key,
            value,
            g,
            beta,
            scale=scale,
            initial_state=initial_state,
            output_final_state=output_final_state,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        )
    query, key = _for_each_value(query, value), _for_each_value(key, value)
    queries, keys, values = (
        _flat(_scaled(_prepared(query, 1, use_qk_l2norm_in_kernel), scale)),
        _flat(_prepared(key, 1, use_qk_l2norm_in_kernel)),
        _flat(_prepared(value, 1)),
    )
    rates = beta.float().flatten()[:, None, None]  # [batch * heads, 1, 1]
    state = (initial_state * g.float().exp().view(*initial_state.shape[:2], 1, 1)).flatten(0, 1)
    correction = values.baddbmm_(keys, state, alpha=-1).mul_(rates)
    state.baddbmm_(keys.mT, correction)
    output = (queries @ state).view(query.shape[0], 1, *value.shape[2:]).to(query.dtype)
    return output, state.view(initial_state.shape) if output_final_state else None


def _for_each_value(tensor: Tensor, value: Tensor) -> Tensor:
    """[batch, tokens, heads, dim] with a head for each head of values; itself where there are as many."""
    heads, wanted = tensor.shape[2], value.shape[2]
    return tensor if heads == wanted else tensor.repeat_interleave(wanted // heads, dim=2)


def _prepared(tensor: Tensor, chunk: int, normalise: bool = False) -> Tensor:
    """[batch, tokens, heads, dim] as [chunks, batch, heads, chunk, dim] of our own; of length one, if asked."""
    ours = float_copy(in_chunks(tensor, chunk).mT)
    if normalise:
        ours *= (ours * ours).sum(-1, keepdim=True).add_(_NORM_EPS).rsqrt_()
    return ours


def _scaled(queries: Tensor, scale: float | None) -> Tensor:
    return queries.mul_(queries.shape[-1] ** -0.5 if scale is None else scale)


def _flat(tensor: Tensor) -> Tensor:
    """One batch of matrices."""
    return tensor.flatten(0, 2)
