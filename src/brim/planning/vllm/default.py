"""vLLM with its default memory fraction: the KV tokens it takes, and from which fraction it runs out of memory.

In: a spec, a device, and what the user gave. Out: `EngineDefault`. vLLM takes a fraction of the device, subtracts what
its profile found, and gives the rest to KV; everything its profile does not see must fit into what the fraction leaves.
"""

from __future__ import annotations

from math import ceil

from brim.planning.vllm.graphs import graph_bytes, left_by_trial_bytes
from brim.planning.vllm.held import absorbed_bytes
from brim.planning.vllm.kernels import LIBRARIES_BYTES
from brim.planning.vllm.pool import kv_pool
from brim.planning.vllm.profile import profiled_peak
from brim.planning.vllm.run import VllmRun
from brim.planning.vllm.uncounted import held_beyond_kv_and_weights
from brim.records.model import ModelSpec
from brim.records.plan import Device, EngineDefault
from brim.units import MIB

DEFAULT_FRACTION = 0.92
_CHECKED = "compared with starts of vLLM 0.26 on an H200"
_FIRST_RUNNER_BYTES = 2 * MIB  # more outside torch than with the second runner


def engine_default(spec: ModelSpec, device: Device, weights_bytes: int, run: VllmRun) -> EngineDefault:
    """What vLLM does with the model when it is started so, one rank's `weights_bytes` given."""
    activation = profiled_peak(spec, run)
    kv_bytes = _requested(device, DEFAULT_FRACTION) - weights_bytes - _beside_weights(spec, run) - activation
    pool = kv_pool(spec, run.kv_dtype, run.ranks)
    return EngineDefault(
        kv_tokens=pool.tokens(kv_bytes),
        request_tokens=pool.request_tokens(kv_bytes, run),
        activation_bytes=activation,
        dies_from_fraction=_dies_from(device, held_beyond_kv_and_weights(spec, run, device) - activation),
        max_len=run.max_len,
        starts=pool.blocks(kv_bytes) >= pool.blocks_of_request(run),
        fraction=DEFAULT_FRACTION,
        checked=_CHECKED,
    )


def _requested(device: Device, fraction: float) -> int:
    return ceil(device.usable_bytes * fraction)


def _beside_weights(spec: ModelSpec, run: VllmRun) -> int:
    """What vLLM subtracts beside weights and activation."""
    libraries = LIBRARIES_BYTES + (0 if run.second_runner else _FIRST_RUNNER_BYTES)
    estimated = 0 if run.second_runner else graph_bytes(spec, run).estimated  # the second runner counts none
    made_at_load = spec.position_table_bytes + absorbed_bytes(spec, run)
    return made_at_load + libraries + left_by_trial_bytes(spec, run) + estimated


def _dies_from(device: Device, uncounted: int) -> float:
    """The fraction that leaves no more than what is not counted; above the free share vLLM does not start at all."""
    share = 1 - max(uncounted, device.context_bytes) / device.usable_bytes
    return round(max(0.0, share), 4)
