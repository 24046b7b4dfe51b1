"""Which kinds of starts Brim's fit has proven inside vLLM, and what a plan keeps free for those it has not.

In: a spec, a device and a run. Out: what no stored fit had, in words, and a margin for it. The stored fits
(`benchmarks/results/inside_vllm_*.json`) are of a Hopper GPU with bf16 weights and KV: dense and mixture models,
sliding windows, Mamba-2, both model runners.
"""

from __future__ import annotations

from collections.abc import Iterator

from brim.planning.vllm.run import VllmRun
from brim.records.model import Attention, Dtype, LatentAttention, Mamba2, ModelSpec
from brim.records.plan import Device

_PROVEN_GENERATION = "hopper"
_MARGIN_PERCENT = 25  # of the worst step: kernels that no fit has run


def unproven(spec: ModelSpec, device: Device, run: VllmRun, *, quantised: bool = False) -> tuple[str, ...]:
    """What no stored fit had."""
    return tuple(_unproven(spec, device, run, quantised))


def margin_bytes(step_bytes: int, missing: tuple[str, ...]) -> int:
    """What stays free where the kind was not proven."""
    return step_bytes * _MARGIN_PERCENT // 100 if missing else 0


def _unproven(spec: ModelSpec, device: Device, run: VllmRun, quantised: bool) -> Iterator[str]:
    mixers = [layer.mixer for layer, _ in spec.layer_groups if layer.mixer is not None]
    if device.generation != _PROVEN_GENERATION:
        yield "this GPU"
    if any(isinstance(mixer, LatentAttention) for mixer in mixers):
        yield "MLA"
    if not all(isinstance(mixer, Attention | LatentAttention | Mamba2) for mixer in mixers):
        yield "its recurrent layers"
    if spec.indexes:
        yield "sparse attention"
    if run.media:
        yield "images or audio"
    if quantised or spec.quantisation is not None:
        yield "quantised weights"
    if run.kv_dtype.bytes != Dtype.BF16.bytes:
        yield f"a KV cache in {run.kv_dtype}"
    if run.draft_tokens:
        yield "a draft model"
    if run.ranks > 1:
        yield "several ranks"
