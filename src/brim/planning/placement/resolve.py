"""The placement that was asked for: text parsed, contradictions refused.

In: a `PlanRequest`, the models, the device and the engine. Out: a `Placement` and the tensor-parallel ranks that go
with it. An engine that divides GPUs by layers takes pipeline stages and tensor-parallel ranks alike as its GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.errors import InvalidRequest
from brim.planning.engines import EngineRules, Split
from brim.planning.placement.adapters import check_adapters
from brim.planning.placement.experts import check_cut, fewest_experts, has_experts, whole_experts
from brim.planning.placement.record import Adapters, Placement
from brim.planning.placement.stages import check_stages
from brim.records.model import ModelSpec
from brim.records.plan import Device, PlanRequest
from brim.suggest import shown

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Placed:
    """Tensor-parallel ranks (or GPUs that share the layers), everything else, and the model that ranks must divide."""

    ranks: int
    placement: Placement
    divided: ModelSpec


def resolve_placement(
    spec: ModelSpec, device: Device, request: PlanRequest, engine: EngineRules | None, draft: ModelSpec | None
) -> Placed:
    """The request's placement, or `InvalidRequest` naming the option."""
    by_layers = engine is not None and engine.split is Split.LAYER
    gpu_layers = _number(request.gpu_layers, "gpu-layers", 1, len(spec.layers) + 1)
    cpu_experts = _number(request.cpu_moe, "cpu-moe", 0, len(spec.layers))
    placement = Placement(
        pipeline=1 if by_layers else request.pipeline_parallel,
        replicas=request.data_parallel,
        expert_parallel=request.expert_parallel,
        gpu_layers=gpu_layers if gpu_layers is None or gpu_layers <= len(spec.layers) else None,
        cpu_experts=cpu_experts or 0,
        open_gpu_layers=request.gpu_layers == AUTO,
        open_cpu_experts=request.cpu_moe == AUTO,
        adapters=_adapters(request),
        host_kv_bytes=request.host_kv_bytes,
    )
    ranks = request.tensor_parallel * (request.pipeline_parallel if by_layers else 1)
    _check_device(device, request)
    _check_offload(spec, device, request, engine)
    if request.pipeline_parallel > 1:
        check_stages(spec, request.pipeline_parallel)
        if draft is not None and not by_layers:
            raise InvalidRequest("draft is given with pp; a draft is planned beside one stage only: leave out pp")
    if placement.adapters is not None and engine is not None and engine.name == "vllm":
        check_adapters(spec, placement.adapters)
    return Placed(ranks, placement, divided_model(spec, ranks, placement, engine))


def divided_model(spec: ModelSpec, tp: int, placement: Placement, engine: EngineRules | None) -> ModelSpec:
    """The model whose widths so many tensor-parallel ranks must divide: whole experts are not divided."""
    ranks = tp * placement.replicas
    if placement.expert_parallel:
        if not has_experts(spec):
            raise InvalidRequest(f"ep is asked for, and {spec.name} has no routed experts; leave out --ep")
        if ranks == 1:
            raise InvalidRequest("ep is asked for on one rank; it needs --tp or --dp, whose ranks share the experts")
        if ranks > fewest_experts(spec):
            raise InvalidRequest(
                f"ep has {ranks} ranks (tp × dp) and {spec.name} {fewest_experts(spec)} experts; lower tp or dp"
            )
        return whole_experts(spec, ranks)
    if placement.replicas > 1 and engine is not None and engine.shares_experts:
        check_cut(spec, ranks)
    return spec


def _number(text: str | None, name: str, lowest: int, most: int) -> int | None:
    """A number of layers; None where it is left out, or open."""
    if text is None or text == AUTO:
        return None
    if not text.isascii() or not text.isdigit() or not lowest <= int(text[:9]) <= most:
        raise InvalidRequest(f"{name} is '{shown(text)}'; it must be auto, or a number from {lowest} to {most}")
    return int(text)


def _adapters(request: PlanRequest) -> Adapters | None:
    rank, count = request.lora_rank, request.loras
    if rank is None and count is None:
        return None
    if rank is None:
        raise InvalidRequest("loras is given without lora-rank, on which their size depends; give --lora-rank 16")
    return Adapters(rank, 1 if count is None else count)


def _check_device(device: Device, request: PlanRequest) -> None:
    if device.is_cpu and (request.pipeline_parallel > 1 or request.data_parallel > 1):
        raise InvalidRequest("pp and dp place a model on several GPUs, and the device is a CPU; leave them out")
    if not device.has_host_memory_apart and request.host_kv_bytes:
        raise InvalidRequest("host-kv is asked for, and the device's memory is the host's; leave it out")


def _check_offload(spec: ModelSpec, device: Device, request: PlanRequest, engine: EngineRules | None) -> None:
    if request.gpu_layers is None and request.cpu_moe is None:
        return
    if engine is None:
        raise InvalidRequest("gpu-layers and cpu-moe are placements of llama.cpp; add --engine llama.cpp")
    if not device.has_host_memory_apart:
        raise InvalidRequest("gpu-layers and cpu-moe divide GPU and host memory, which are one here; leave them out")
    if request.cpu_moe not in (None, "0") and not has_experts(spec):
        raise InvalidRequest(f"cpu-moe is asked for, and {spec.name} has no routed experts; use --gpu-layers")
    if AUTO == request.gpu_layers == request.cpu_moe:
        raise InvalidRequest("gpu-layers and cpu-moe are both auto; give a number for one of them")
