"""The exact size of stock vLLM by two starts, for a version whose private names Brim does not know.

    python -m brim.vllm.stock.two_starts FILE MODEL [flags of vllm serve]      # writes {"kv_cache_memory_bytes": N}

The first start, here, is stock vLLM with a KV cache of a quarter of the device. The worst load that the API allows runs
through it, and every worker is asked by RPC for the peak of its memory; only public interfaces are used. What is left
beside that peak is the size of the second start. Unlike the fit it is measured and not proven, so more is kept back:
the canary, and the allocator's rounding.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from brim.errors import DoesNotFit
from brim.records.memory import MemoryReading
from brim.reserve.processes import resident_bytes
from brim.units import KIB, MIB, format_bytes
from brim.vllm.settings import read_settings
from brim.vllm.stock.load import DemandingRequests

_ROUNDING_BYTES = 2 * 20 * MIB  # segments grow by 20 MiB: those of steps and those of graphs may each need one more
_FIRST_PART = 4  # of the device, for the KV cache of the first start: a quarter
_ANSWER_TOKENS = 8
_SCORED = 8  # every so many prompts one is scored


class MemoryFigures:
    """What a stock worker can be asked (`worker_extension_cls`)."""

    device: Any

    def brim_reading(self) -> dict[str, Any]:
        """This worker's memory, by its allocator and the driver; on the CPU, by what is resident."""
        if self.device.type == "cuda":
            from brim.probes.cuda import CudaProbe

            return asdict(CudaProbe(self.device.index or 0).reading())
        total, held = int(self.requested_cpu_memory), resident_bytes(os.getpid())  # type: ignore[attr-defined]
        peak = max(held, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB)
        return asdict(MemoryReading(total, total - held, held, held, peak, peak, 0))


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
    first = (settings.budget_bytes or _device_bytes()) // _FIRST_PART
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


def _device_bytes() -> int:
    """Of the first GPU that this process sees."""
    from brim.probes.nvml import device_uuid
    from brim.probes.usage import gpu_usage

    return gpu_usage(device_uuid(0)).total_bytes


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
