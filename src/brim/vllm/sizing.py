"""A vLLM worker sized by measurement: its adapter for `brim.fit.session`, with its probe and its lease.

In: a worker with its weights loaded, and the settings. Out: a `Sized`: the report of a proven size, which stands.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, is_dataclass, replace
from enum import Enum
from typing import Any

from brim.errors import DeviceError
from brim.fit.keep_free import KeepFree
from brim.fit.ranks import ONE_RANK, FitRanks, gathered
from brim.fit.session import FitSession, SessionOptions
from brim.ports import MemoryProbe
from brim.probes.cpu import CpuProbe
from brim.records.fit import CUDA_ROUNDING_BYTES, FitReport, FitRequest
from brim.records.memory import DeviceFacts, MemoryReading
from brim.records.progress import Stage
from brim.reserve.devices import Budget, Gpu, LeasedDevice, budget_key
from brim.reserve.sizing import Sizer, sizing
from brim.units import GIB, MIB
from brim.version import __version__
from brim.vllm.runner.engine import VllmEngine
from brim.vllm.runner.lockstep import Lockstep
from brim.vllm.settings import RescueMode, WorkerSettings

_LATE_BUFFERS_BYTES = 256 * MIB  # cuBLAS workspaces, and buffers that vLLM makes when it first needs them
_LATE_BUFFERS_CPU_BYTES = 4 * MIB
_UNCOUNTED_BYTES = MIB  # on the CPU: of buffers that stood before the probe counted, and that a build makes again
_GRAPHS_BYTES = 4 * GIB  # of the driver, at most: vLLM captures a hundred graphs and more, some for each layer
_SOME_BYTES = 1 << 50  # more than any device has
_MOST_TOKENS = 1 << 27  # as Brim's own engine: the host keeps a few numbers for each block

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sized:
    """A worker whose KV cache stands at a proven size."""

    report: FitReport
    device_probe: Any  # holds the canary
    leases: ExitStack  # closed when the worker ends


@dataclass(frozen=True, slots=True)
class Pinned:
    """What vLLM was told about its memory: a size of the KV cache, or a cap for the process."""

    kv_tokens: int | None = None
    keep_free_bytes: int = 0


def size_worker(worker: Any, engine: VllmEngine, settings: WorkerSettings, say: Say) -> Sized:
    """Fit the worker; it is left built at the proven size, with the canary given to its allocator."""
    ranks = _ranks(worker)
    with ExitStack() as opened:
        leases = opened.enter_context(ExitStack())
        with ranks.together("neighbours"):
            sizer = _sizer(worker, settings, leases, say)
            device_probe, counting = _device_probe(worker, settings, sizer)
        if ranks is not ONE_RANK:
            engine.lockstep = Lockstep(ranks, device_probe)
        with counting:
            report = _fitted(worker, engine, device_probe, settings, ranks, sizer, say)
        device_probe.lend_canary()  # the allocator may use it, other processes may not: nothing else would spend it
        return Sized(report, device_probe, opened.pop_all())


def _fitted(
    worker: Any,
    engine: VllmEngine,
    probe: MemoryProbe,
    settings: WorkerSettings,
    ranks: FitRanks,
    sizer: Sizer | None,
    say: Say,
) -> FitReport:
    """A stored fit that is still valid, or a new one, which is stored."""
    gc.collect()  # what compiling leaves is not there at a start with warm caches
    return FitSession(
        engine,
        probe,
        engine.blocks.price,
        _WorkerAdapter(worker, engine, settings, ranks),
        SessionOptions(settings.keep_free_bytes, settings.store),
        ranks=ranks,
        neighbours=sizer,
        told=_said_once(say),
        say=say,
    ).run()


@dataclass(frozen=True, slots=True)
class _WorkerAdapter:
    """vLLM's worker for a fit session."""

    worker: Any
    engine: VllmEngine
    settings: WorkerSettings
    ranks: FitRanks

    def facts(self) -> DeviceFacts:
        return device_facts(self.worker)

    def request(self, kept_free: KeepFree) -> FitRequest:
        return _request(self.worker, self.engine, self.settings, kept_free)

    def depends_on(self, request: FitRequest, before: MemoryReading) -> dict[str, Any]:
        return _decisive(self.worker, self.engine, request, self.settings, before, self.ranks)

    def warnings(self) -> tuple[str, ...]:
        return ()


def _said_once(say: Say) -> Callable[[Stage], None]:
    said: list[str] = []

    def told(stage: Stage) -> None:
        if said[-1:] != [stage.title]:
            said.append(stage.title)
            say(stage.title)

    return told


def _request(worker: Any, engine: VllmEngine, settings: WorkerSettings, kept_free: KeepFree) -> FitRequest:
    on_gpu = worker.device.type == "cuda"
    pinned = _pinned(worker, engine, settings)
    return FitRequest(
        probe_tokens=engine.probe_tokens,
        least_tokens=engine.least_tokens,
        most_tokens=_MOST_TOKENS,
        kv_tokens=pinned.kv_tokens,
        memory_fraction=settings.memory_fraction,
        canary_bytes=settings.canary_bytes,
        own_growth_bytes=_GRAPHS_BYTES,
        leak_tolerance_bytes=_LATE_BUFFERS_BYTES if on_gpu else _LATE_BUFFERS_CPU_BYTES,
        rounding_bytes=CUDA_ROUNDING_BYTES if on_gpu else _UNCOUNTED_BYTES,
        keep_free_bytes=max(kept_free.bytes, pinned.keep_free_bytes) + front_bytes(worker),
        keep_free_note=kept_free.note,
        running_tokens=engine.limits.rows * engine.limits.length,
    )


def _pinned(worker: Any, engine: VllmEngine, settings: WorkerSettings) -> Pinned:
    """A size is validated only; a utilization stays a cap of the process."""
    cache = worker.vllm_config.cache_config
    if cache.num_gpu_blocks_override is not None:
        return Pinned(kv_tokens=engine.blocks.held_tokens(cache.num_gpu_blocks_override))
    if cache.kv_cache_memory_bytes is not None:
        return Pinned(kv_tokens=engine.blocks.tokens_of(cache.kv_cache_memory_bytes))
    if worker.device.type != "cuda" or not is_cap(cache, settings):
        return Pinned()
    requested = round(worker.init_snapshot.total_memory * cache.gpu_memory_utilization)
    return Pinned(keep_free_bytes=max(0, worker.init_snapshot.free_memory - requested))


def front_bytes(worker: Any) -> int:
    """What vLLM's front processes may take on this device to decode video, by vLLM's own rule."""
    if worker.device.type != "cuda":
        return 0
    reserve = getattr(worker, "_reserve_mm_ipc_gpu_memory", None)
    if reserve is not None:
        return _SOME_BYTES - int(reserve(_SOME_BYTES))
    from vllm.multimodal.gpu_ipc_memory import reserve_mm_ipc_gpu_memory  # newer versions

    config, fronts = worker.vllm_config, getattr(worker.vllm_config.parallel_config, "_api_process_count", 1)
    return _SOME_BYTES - int(
        reserve_mm_ipc_gpu_memory(_SOME_BYTES, config.model_config.multimodal_config, api_process_count=fronts)
    )


def is_cap(cache_config: Any, settings: WorkerSettings) -> bool:
    """Whether the operator gave `gpu_memory_utilization`: said so, or it is not vLLM's default."""
    default = type(cache_config)().gpu_memory_utilization
    return bool(settings.utilization_given or cache_config.gpu_memory_utilization != default)


def _ranks(worker: Any) -> FitRanks:
    """All that meet in collectives: vLLM's world has the ranks of every replica of a mixture of experts.

    Replicas of a dense model meet in none: each of them has a world of its own.
    """
    from vllm.distributed.parallel_state import get_world_group

    world = get_world_group()
    return ONE_RANK if world.world_size == 1 else FitRanks(world.rank, gathered(world.cpu_group))


def _device_probe(
    worker: Any, settings: WorkerSettings, sizer: Sizer | None
) -> tuple[Any, AbstractContextManager[Any]]:
    """The probe of the worker's device, and what must be open while it counts."""
    if worker.device.type == "cuda":
        from brim.probes.cuda import CudaProbe

        return CudaProbe(worker.device.index or 0), nullcontext()
    probe = CpuProbe(cpu_budget_bytes(worker, settings) if sizer is None else sizer.part.promised_bytes)
    model = worker.model_runner.get_model()
    probe.hold([*model.parameters(), *model.buffers()])
    return probe, probe


def device_facts(worker: Any) -> DeviceFacts:
    if worker.device.type != "cuda":
        return DeviceFacts()
    from brim.probes.facts import gpu_facts

    return gpu_facts(worker.device.index or 0)


def _sizer(worker: Any, settings: WorkerSettings, leases: ExitStack, say: Say) -> Sizer | None:
    """This worker's part of a device that others share; None where nobody can be asked."""
    shares = settings.share.fraction is not None or settings.share.bytes is not None
    asked = shares or settings.expected.count or settings.expected.roles
    try:
        device = leased_device(worker, settings)
        if device is None:
            return None
        part = sizing(
            device,
            role="vllm",
            share=settings.share,
            expected=settings.expected,
            wait_seconds=settings.wait_seconds,
            told=lambda stage: say(stage.title),
        )
        return leases.enter_context(part)
    except DeviceError as error:
        if asked or type(error) is not DeviceError:
            raise  # asked for, or a neighbour's doing
        say(f"neighbours are not asked: {error}")
        return None


def leased_device(worker: Any, settings: WorkerSettings) -> LeasedDevice | None:
    """The device of a worker as its neighbours know it; None for a budget on the CPU without a name."""
    if worker.device.type == "cuda":
        from brim.probes.nvml import device_uuid
        from brim.probes.usage import gpu_usage

        uuid = device_uuid(worker.device.index or 0)
        return Gpu(uuid, gpu_usage(uuid).total_bytes)
    if settings.budget_name is None:
        return None
    return Budget(budget_key(settings.budget_name, "budget_name"), cpu_budget_bytes(worker, settings))


def cpu_budget_bytes(worker: Any, settings: WorkerSettings) -> int:
    return int(settings.budget_bytes or worker.requested_cpu_memory)


def _weight_bytes(model: Any) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def plain_values(value: Any) -> Any:
    """All that a configuration says, without those of others that it holds; as text it leaves things out."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain_values({name: one for name, one in vars(value).items() if not name.endswith("_config")})
    if isinstance(value, Mapping):
        return {str(name): plain_values(one) for name, one in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, list | tuple):
        return [plain_values(one) for one in value]
    if isinstance(value, Enum):
        return value.name
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__


def _decisive(
    worker: Any,
    engine: VllmEngine,
    request: FitRequest,
    settings: WorkerSettings,
    before: MemoryReading,
    ranks: FitRanks,
) -> dict[str, Any]:
    """Everything that the size depends on."""
    import torch
    import vllm

    config = worker.vllm_config
    return {
        "engine": "vllm",
        "runner": type(worker.model_runner).__module__,
        "model": config.model_config.hf_config.to_dict(),
        "weights": _weight_bytes(worker.model_runner.get_model()),
        "config": config.compute_hash(),
        "scheduler": str(config.scheduler_config),
        "speculative": plain_values(config.speculative_config),
        "media": plain_values(getattr(config.model_config, "multimodal_config", None)),
        "lora": str(config.lora_config),
        "graphs": [str(config.compilation_config.cudagraph_mode), config.compilation_config.cudagraph_capture_sizes],
        "limits": asdict(engine.limits),
        "blocks": asdict(engine.blocks),
        "request": asdict(request),
        "settings": str(replace(settings, store=None, report=None, wait_seconds=0.0, rescue=RescueMode.AUTO)),
        "stress": [asdict(shape) for shape in engine.stress_shapes()],
        "rank": ranks.rank,
        "device": "cpu" if worker.device.type == "cpu" else str(torch.cuda.get_device_properties(worker.device)),
        "memory": before.total_bytes,
        "versions": [__version__, vllm.__version__, torch.__version__, platform.python_version()],
    }
