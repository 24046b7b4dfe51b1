"""What a recurrent layer holds in a step of vLLM: its tensors, and the states of all chunks and all requests.

In: a spec and a run. Out: bytes. Prompts are computed in chunks, each with a state of its own in fp32; a request begins
with its state gathered from the cache and ends with the one that is written back. vLLM's profile runs none of this: it
returns before the scan. Many short prompts are the worst, because each has a chunk at least.

Mamba-2 was checked on an H200. The delta rule follows from the shapes of its kernels, and was not.
"""

from __future__ import annotations

from brim.model.weights import on_rank
from brim.planning.vllm.kernels import ELEMENT_BYTES, FP32_BYTES
from brim.planning.vllm.profile import hidden_bytes, mixing_bytes
from brim.planning.vllm.run import VllmRun
from brim.records.model import DeltaNet, LayerSpec, Mamba2, ModelSpec
from brim.units import ceil_div


def recurrent_moment(spec: ModelSpec, run: VllmRun) -> int:
    """The most that any recurrent layer holds."""
    return max((_moment(spec, run, layer) for layer, _ in spec.layer_groups), default=0)


def _moment(spec: ModelSpec, run: VllmRun, layer: LayerSpec) -> int:
    match layer.mixer:
        case Mamba2() as mixer:
            return hidden_bytes(spec, run) + _mamba(spec, run, layer, mixer)
        case DeltaNet() as mixer:
            return mixing_bytes(spec, run, mixer) + _delta_rule(run, mixer)
        case _:
            return 0


def _mamba(spec: ModelSpec, run: VllmRun, layer: LayerSpec, mixer: Mamba2) -> int:
    """Between chunks: what was projected, convolved and will be returned, and three sets of states."""
    width = mixer.inner + mixer.conv_dim + mixer.heads  # gate, input and steps as projected
    width += mixer.conv_dim  # as convolved
    width += mixer.inner  # the output
    chunks = _chunks(run, mixer.chunk)
    state = on_rank(mixer.inner * mixer.state, mixer.heads, run.ranks)
    state_bytes = max((one.dtype or spec.dtype).bytes for one in layer.state)
    groups, heads = on_rank(mixer.groups, mixer.groups, run.ranks), on_rank(mixer.heads, mixer.heads, run.ranks)
    return (
        run.batch_tokens * on_rank(width, mixer.heads, run.ranks) * ELEMENT_BYTES
        + _requests(run) * state * state_bytes  # as requests begin
        + chunks * state * FP32_BYTES  # of each chunk alone
        + chunks * state * state_bytes  # at the end of each chunk
        + chunks * groups * mixer.chunk * mixer.chunk * FP32_BYTES  # products of a chunk with itself
        + 2 * chunks * heads * mixer.chunk * FP32_BYTES  # steps, and their sums
    )


def _delta_rule(run: VllmRun, mixer: DeltaNet) -> int:
    """States of the chunks, in the model's own type, and of requests before and after, in fp32."""
    state = on_rank(mixer.value_heads * mixer.key_dim * mixer.value_dim, mixer.key_heads, run.ranks)
    return _chunks(run, mixer.chunk) * state * ELEMENT_BYTES + 2 * _requests(run) * state * FP32_BYTES


def _requests(run: VllmRun) -> int:
    return min(run.max_seqs, run.batch_tokens)


def _chunks(run: VllmRun, chunk_tokens: int) -> int:
    """One for each request, and one for each boundary between chunks: prompts begin anywhere in a chunk."""
    return _requests(run) + ceil_div(run.batch_tokens, chunk_tokens)
