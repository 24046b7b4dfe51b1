"""The exact size of stock vLLM by two starts, for a version whose private names Brim does not know.

    python -m brim.vllm.stock.two_starts FILE MODEL [flags of vllm serve]      # writes {"kv_cache_memory_bytes": N}

The first start, here, is stock vLLM with a KV cache of a quarter of what is left of the device. The worst load that the
API allows runs through it, and every worker is asked by RPC for the peak of its memory; only public interfaces are
used. What is left beside that peak, and beside what neighbours hold and were promised, is the size of the second start.
Unlike the fit it is measured and not proven, so more is kept back: the canary, and the allocator's rounding.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from brim.errors import DoesNotFit
from brim.records.memory import MemoryReading
from brim.reserve.devices import Budget, Gpu, LeasedDevice, budget_key
from brim.reserve.processes import resident_bytes
from brim.reserve.promised import promised_bytes
from brim.units import KIB, MIB, format_bytes
from brim.vllm.settings import Settings, read_settings
from brim.vllm.sizing import leased_device
from brim.vllm.stock.load import DemandingRequests

_ROUNDING_BYTES = 2 * 20 * MIB  # segments grow by 20 MiB: those of steps and those of graphs may each need one more
_FIRST_PART = 4  # of what is left of the device, for the KV cache of the first start: a quarter
_ANSWER_TOKENS = 8
_SCORED = 8  # every so many prompts one is scored


class MemoryFigures:
    """What a stock worker can be asked (`worker_extension_cls`)."""

    device: Any
    vllm_config: Any

    def brim_reading(self) -> dict[str, Any]:
        """This worker's memory, in which what neighbours were promised is theirs."""
        settings = read_settings(self.vllm_config.additional_config, os.environ)
        return asdict(without_promised(_reading(self), leased_device(self, settings)))


def _reading(worker: Any) -> MemoryReading:
    """By the worker's allocator and the driver; on the CPU, by what is resident."""
    if worker.device.type == "cuda":
        from brim.probes.cuda import CudaProbe

        return CudaProbe(worker.device.index or 0).reading()
    total, held = int(worker.requested_cpu_memory), resident_bytes(os.getpid())
    peak = max(held, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB)
    return MemoryReading(total, total - held, held, held, peak, peak, 0)


def without_promised(reading: MemoryReading, device: LeasedDevice | None) -> MemoryReading:
    """A reading in which the memory that neighbours may still take counts as theirs."""
    promised = 0 if device is None else promised_bytes(device)
    return replace(reading, free_bytes=reading.free_bytes - promised, other_bytes=reading.other_bytes + promised)


def second_size(
    readings: Iterable[MemoryReading], first_kv_bytes: int, canary_bytes: int, utilization: float = 1.0
) -> int:
    """The KV cache that fits beside the peak of everything else, on the tightest rank; a utilization is a cap."""
    return min(
        min(
            reading.total_bytes - reading.other_bytes,  # driver, context, kernels, neighbours
            round(reading.total_bytes * utilization),
        )
        - (reading.peak_reserved_bytes - first_kv_bytes)  # this process at its peak, without KV
        - canary_bytes
        - _ROUNDING_BYTES
        for reading in readings
    )


def measured_size(words: list[str]) -> int:
    """Start stock vLLM small, run the load, and compute the size of the next start."""
    from vllm import LLM

    given = _engine_arguments(words)
    settings = read_settings(given.get("additional_config"), os.environ)
    first = left_bytes(settings) // _FIRST_PART
    extension = f"{__package__}.two_starts.MemoryFigures"
    llm = LLM(**{**given, "kv_cache_memory_bytes": first, "worker_extension_cls": extension})
    llm.generate(*_worst_load(llm), use_tqdm=False)
    readings = [MemoryReading(**one) for one in llm.collective_rpc("brim_reading")]
    size = second_size(readings, first, settings.canary_bytes, given.get("gpu_memory_utilization", 1.0))
    if size <= 0:
        raise DoesNotFit(
            f"nothing is left for the KV cache; the shortfall is {format_bytes(-size)}", missing_bytes=-size
        )
    return size


def _engine_arguments(words: list[str]) -> dict[str, Any]:
    """The flags of `vllm serve` that are the engine's and were given, read by vLLM's own parser."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("model_tag", nargs="?")
    known, _ = parser.parse_known_args(words)
    defaults = vars(parser.parse_known_args([])[0])
    given = {name: value for name, value in vars(known).items() if value != defaults[name]}
    tag = given.pop("model_tag", None)
    return {**given, "model": tag} if tag else given


def left_bytes(settings: Settings) -> int:
    """What neighbours leave of a budget on the CPU, or of the first GPU that this process sees."""
    device, free = _first_device(settings)
    left = free if device is None else free - promised_bytes(device)
    if left <= 0:
        raise DoesNotFit(
            f"neighbours were promised all of the {format_bytes(free)} that are free", missing_bytes=1 - left
        )
    return left


def _first_device(settings: Settings) -> tuple[LeasedDevice | None, int]:
    """As neighbours know it, and what is free there; a budget without a name is known to nobody."""
    size = settings.budget_bytes
    if size is not None:
        name = settings.budget_name
        return (None if name is None else Budget(budget_key(name, "budget_name"), size)), size
    from brim.probes.nvml import device_uuid
    from brim.probes.usage import gpu_usage

    uuid = device_uuid(0)
    usage = gpu_usage(uuid)
    return Gpu(uuid, usage.total_bytes), usage.free_bytes


def _worst_load(llm: Any) -> tuple[list[Any], list[Any]]:
    """As many requests as may run, at full length; some prompts are scored."""
    config = llm.llm_engine.vllm_config
    length = config.model_config.max_model_len - _ANSWER_TOKENS - 1
    makes = DemandingRequests(llm)
    asked = [
        makes.request(length, _ANSWER_TOKENS, scored=number % _SCORED == 0)
        for number in range(config.scheduler_config.max_num_seqs)
    ]
    return [prompt for prompt, _ in asked], [drawn for _, drawn in asked]


if __name__ == "__main__":
    found = {"kv_cache_memory_bytes": measured_size(sys.argv[2:])}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
