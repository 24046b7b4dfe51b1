"""What a loaded vLLM holds that its profile does not count, or counts as something else.

In: a spec, a run and a device. Out: bytes. vLLM dies when this is more than the profiled peak and what its fraction
leaves free. The allocator keeps what it reserved, in blocks that larger tensors do not fit into, and the driver's own
allocations do not wait for it to give blocks back: so what is reserved counts, for a step and for the sampler.
"""

from __future__ import annotations

from dataclasses import replace

from brim.planning.vllm.graphs import graph_bytes
from brim.planning.vllm.kernels import (
    BLOCK_TOKENS,
    CACHE_FLUSH_BYTES,
    ELEMENT_BYTES,
    FP32_BYTES,
    INT32_BYTES,
    MATRIX_WORKSPACE_BYTES,
)
from brim.planning.vllm.profile import encoder_bytes, hidden_bytes, layer_peak, selection_bytes
from brim.planning.vllm.run import VllmRun
from brim.records.model import ModelSpec
from brim.records.plan import Device
from brim.units import KIB, ceil_div

_SLACK_PERCENT = 32  # what the allocator reserves beyond the peak of a step
_REQUEST_BYTES = 20 * KIB  # small tables of the second runner, for each request


def held_beyond_kv_and_weights(spec: ModelSpec, run: VllmRun, device: Device) -> int:
    """All that the worst load holds beyond weights, KV, and what vLLM subtracted beside its profiled peak."""
    graphs = graph_bytes(spec, run).total + MATRIX_WORKSPACE_BYTES if run.captured_tokens else 0
    return (
        device.context_bytes
        + _reserved_step(spec, run)
        + _reserved_warm_up(spec, run)
        + request_tables(spec, run)
        + _sampler_cache(spec, run)
        + (encoder_bytes(spec, run) if run.second_runner else 0)
        + (graphs if run.second_runner else 0)
    )


def _reserved_step(spec: ModelSpec, run: VllmRun) -> int:
    step = layer_peak(spec, run) - CACHE_FLUSH_BYTES
    return step * (100 + _SLACK_PERCENT) // 100


def _reserved_warm_up(spec: ModelSpec, run: VllmRun) -> int:
    """The second runner warms up with two tokens for each request."""
    tokens = 2 * run.max_seqs
    if not run.second_runner or tokens >= run.batch_tokens:
        return 0
    return layer_peak(spec, replace(run, batch_tokens=tokens)) - CACHE_FLUSH_BYTES


def request_tables(spec: ModelSpec, run: VllmRun) -> int:
    """Made before the profile or after it, and counted by neither: what is kept for each request that may run."""
    block_tables = 2 * ceil_div(run.max_len, BLOCK_TOKENS) * INT32_BYTES
    embeddings = hidden_bytes(spec, run) if run.media else 0
    if not run.second_runner:
        return run.max_seqs * block_tables + embeddings
    counts = spec.vocab * INT32_BYTES  # of every token in the output, for penalties
    bits = 2 * ceil_div(spec.vocab, 32) * INT32_BYTES  # tokens in the prompt; tokens that a grammar allows
    return run.max_seqs * (counts + bits + block_tables + _REQUEST_BYTES) + embeddings


def _sampler_cache(spec: ModelSpec, run: VllmRun) -> int:
    """Logits and their copies, which stay reserved beside the tensors of a step."""
    logits = run.logit_rows * spec.vocab
    if run.second_runner:  # logits, and those before penalties, for log-probabilities
        return 2 * logits * ELEMENT_BYTES + selection_bytes(spec, run)
    counts = 2 * (8 + 1)  # of tokens in prompt and output, and whether there are any
    return logits * (ELEMENT_BYTES + 4 * FP32_BYTES + counts) + selection_bytes(spec, run)
