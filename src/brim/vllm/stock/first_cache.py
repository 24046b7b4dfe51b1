"""The KV cache of a first start: small enough for any model that the device can hold.

In: Brim's settings and the engine's arguments. Out: bytes. The weights are not loaded yet; they are taken off where
their files are known on this machine, and count as nothing where vLLM will download them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brim.errors import DoesNotFit, InvalidConfig, InvalidRequest
from brim.model.checkpoint import stored_weights
from brim.model.hub import cached_snapshot
from brim.model.source import is_hub_id
from brim.reserve.devices import Budget, Gpu, LeasedDevice, budget_key
from brim.reserve.promised import promised_bytes
from brim.units import ceil_div, format_bytes
from brim.vllm.settings import WorkerSettings

_PART = 4  # of what weights leave of the device: a quarter
_LEAST_LEFT = 16  # weights that are converted while they load take less than their files: a sixteenth is left at least
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.gguf")


def first_kv_bytes(settings: WorkerSettings, arguments: Any, *, on_cpu: bool) -> int:
    """The size of the KV cache on every rank."""
    left = left_bytes(settings, arguments, on_cpu=on_cpu)
    drafts = (arguments.speculative_config or {}).get("model")
    weights = sum(checkpoint_bytes(model) for model in (arguments.model, drafts) if model)
    beside = left - ceil_div(weights, _ranks(arguments))
    return max(beside, left // _LEAST_LEFT) // _PART


def checkpoint_bytes(model: str) -> int:
    """The bytes of a model's weights by its local files; 0 where they are not here."""
    folder = Path(model)
    if folder.is_file():
        return folder.stat().st_size
    found = folder if folder.is_dir() else cached_snapshot(model) if is_hub_id(model) else None
    if found is None:
        return 0
    try:
        stored = stored_weights(found, layers=sys.maxsize)
    except InvalidConfig:  # vLLM will say what is wrong with it
        return 0
    if stored is not None:
        return stored.bytes
    return sum(file.stat().st_size for pattern in _OTHER_WEIGHTS for file in found.glob(pattern))


def left_bytes(settings: WorkerSettings, arguments: Any, *, on_cpu: bool) -> int:
    """What neighbours leave of a budget on the CPU, or of the tightest GPU of this engine."""
    devices = [_budget(settings)] if on_cpu else list(_gpus(arguments))
    return min(_left_of(device, free) for device, free in devices)


def _left_of(device: LeasedDevice | None, free_bytes: int) -> int:
    left = free_bytes if device is None else free_bytes - promised_bytes(device)
    if left <= 0:
        raise DoesNotFit(
            f"neighbours were promised all of the {format_bytes(free_bytes)} that are free", missing_bytes=1 - left
        )
    return left


def _budget(settings: WorkerSettings) -> tuple[LeasedDevice | None, int]:
    """As neighbours know it, and its size; a budget without a name is known to nobody."""
    size, name = settings.budget_bytes, settings.budget_name
    if size is None:
        raise InvalidRequest(
            'additional_config.brim.budget is not set; the CPU needs one, such as {"brim": {"budget": "8GiB"}}'
        )
    return (None if name is None else Budget(budget_key(name, "budget_name"), size)), size


def _gpus(arguments: Any) -> Iterator[tuple[LeasedDevice, int]]:
    """The GPUs of the ranks on this machine, without a CUDA context, and what is free there."""
    from brim.probes.usage import gpu_usage
    from brim.probes.visible import visible_gpus

    visible = [gpu.uuid for gpu in visible_gpus()]
    chosen = [_uuid(one, visible) for one in arguments.device_ids or ()]
    for uuid in (chosen or visible)[: _ranks(arguments) * arguments.data_parallel_size]:
        usage = gpu_usage(uuid)
        yield Gpu(uuid, usage.total_bytes), usage.free_bytes


def _uuid(device_id: int | str, visible: list[str]) -> str:
    """vLLM numbers the GPUs that this process sees, or takes their UUIDs."""
    number = str(device_id)
    if not number.isdecimal():
        return number
    if int(number) >= len(visible):
        raise InvalidRequest(f"device-ids: there is no GPU {number}; this process sees {len(visible)}")
    return visible[int(number)]


def _ranks(arguments: Any) -> int:
    """The ranks that share the weights of a replica."""
    return int(arguments.tensor_parallel_size) * int(arguments.pipeline_parallel_size)
