"""All that vLLM holds beyond weights and KV under its worst load, line by line.

In: a spec, a device and a run. Out: `Held`. What is left of the device beside it and the weights is the KV cache that
survives. Compared with sizes that Brim's fit has proven inside vLLM (`benchmarks/results/inside_vllm_*.json`): its
"context" is `context` to `driver_graphs` here, its "weights" have `made_at_load` and `kept` in them, the rest is what
the allocator reserves. Sizes hold with segments that grow (`expandable_segments:True`): without them the allocator
needs more.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from brim.model.weights import on_rank
from brim.planning.gpus.cards import ARCHITECTURES, Vendor
from brim.planning.vllm.graphs import driver_bytes, graph_bytes, left_by_trial_bytes
from brim.planning.vllm.kernels import ELEMENT_BYTES, LIBRARIES_BYTES, MATRIX_WORKSPACE_BYTES
from brim.planning.vllm.profile import hidden_bytes, selection_bytes
from brim.planning.vllm.run import VllmRun
from brim.planning.vllm.uncounted import request_tables
from brim.planning.vllm.worst import kept_workspace, worst_step
from brim.records.model import LatentAttention, ModelSpec
from brim.records.plan import Device
from brim.units import MIB

_GROWING_SLACK_PERCENT = 32  # what growing segments reserve beyond the peak of a step, at most
_FIXED_SLACK_PERCENT = 100  # and segments that do not grow: larger tensors do not fit into what smaller ones left
_SEGMENT_STEP_BYTES = 20 * MIB  # by which segments grow: those of steps, and those of graphs
_RANKS_BYTES = 512 * MIB  # channels and buffers of collectives


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes beyond weights and KV, by what holds them."""

    context: int  # of the process
    libraries: int  # outside torch: code and buffers of the matrix library and of compiled kernels
    driver_graphs: int  # what the driver keeps for captured graphs
    made_at_load: int  # tables of positions, matrices of MLA, and tables for each request that may run
    kept: int  # workspaces that stay once they are made, of matrices, experts and sampling; embeddings of media
    collectives: int  # of ranks
    graph_pool: int  # the memory that captured steps share, and their outputs
    step: int  # the worst step at its peak
    slack: int  # what the allocator reserves beyond it

    @property
    def total(self) -> int:
        return sum(getattr(self, one.name) for one in fields(self))


def held_under_worst_load(spec: ModelSpec, device: Device, run: VllmRun) -> Held:
    """What must be free beside weights and KV so that every step that the API allows runs."""
    graphs, step = graph_bytes(spec, run), worst_step(spec, run)
    return Held(
        context=device.context_bytes,
        libraries=LIBRARIES_BYTES,
        driver_graphs=driver_bytes(spec, run) + left_by_trial_bytes(spec, run),
        made_at_load=spec.position_table_bytes + absorbed_bytes(spec, run) + request_tables(spec, run),
        kept=_kept(spec, run) + (hidden_bytes(spec, run) if run.media else 0),
        collectives=_RANKS_BYTES if run.ranks > 1 else 0,
        graph_pool=graphs.pool + graphs.outputs + (MATRIX_WORKSPACE_BYTES if run.captured_tokens else 0),
        step=step,
        slack=step * _slack_percent(device, run) // 100 + 2 * _SEGMENT_STEP_BYTES,
    )


def segments_grow(device: Device, run: VllmRun) -> bool:
    """Whether vLLM can run with segments that grow: with CUDA, and on one rank.

    Ranks open each other's memory by handles, which such segments lack. A device of unknown make is taken for NVIDIA's.
    """
    architecture = ARCHITECTURES.get(device.generation)
    return run.ranks == 1 and not device.is_cpu and (architecture is None or architecture.vendor is Vendor.NVIDIA)


def _slack_percent(device: Device, run: VllmRun) -> int:
    return _GROWING_SLACK_PERCENT if segments_grow(device, run) else _FIXED_SLACK_PERCENT


def absorbed_bytes(spec: ModelSpec, run: VllmRun) -> int:
    """MLA keeps its expanding matrices a second time, unquantised, in the shape in which decoding multiplies them."""
    return sum(
        count
        * on_rank(layer.mixer.heads, layer.mixer.heads, run.ranks)
        * (layer.mixer.nope_dim + layer.mixer.value_dim)
        * layer.mixer.kv_rank
        * ELEMENT_BYTES
        for layer, count in spec.layer_groups
        if isinstance(layer.mixer, LatentAttention)
    )


def _kept(spec: ModelSpec, run: VllmRun) -> int:
    """The first runner profiles its sampler and captures graphs on trial: each leaves its workspace."""
    if run.second_runner:
        return MATRIX_WORKSPACE_BYTES + kept_workspace(spec, run)
    return 3 * MATRIX_WORKSPACE_BYTES + kept_workspace(spec, run) + selection_bytes(spec, run)
