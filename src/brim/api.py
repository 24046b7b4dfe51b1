"""The Python API: the same records that the commands print."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

from brim.errors import CannotTrace, InvalidRequest
from brim.folders import curves_folder
from brim.install import install_command
from brim.model.source import load_config
from brim.model.weights import check_tensor_parallel
from brim.planning.devices import find_devices
from brim.planning.node import rank_devices, tensor_ranks
from brim.planning.plan import make_plan
from brim.planning.settings import Curves
from brim.records.model import MediaType, ModelSpec
from brim.records.plan import Device, MemoryPlan, PlanRequest
from brim.records.trace import ActivationCurve, Phase
from brim.trace.loading import load_model
from brim.trace.store import CurveStore, shipped_curve
from brim.units import parse_bytes, parse_count


def plan(
    model: str | PathLike[str] | ModelSpec,
    *,
    gpu: str | Device | Sequence[Device],
    max_len: int | str | None = None,
    max_seqs: int | None = None,
    concurrency: int | None = None,
    mean_len: int | str | None = None,
    users: int | None = None,
    tokens_per_second: int | None = None,
    kv_tokens: int | str | None = None,
    batch_tokens: int | str | None = None,
    kv_dtype: str | None = None,
    weights: str | None = None,
    tp: int | None = None,
    pp: int = 1,
    dp: int = 1,
    ep: bool = False,
    gpu_layers: int | str | None = None,
    cpu_moe: int | str | None = None,
    lora_rank: int | None = None,
    loras: int | None = None,
    host_kv: int | str = 0,
    image_pixels: int | None = None,
    images_per_prompt: int | None = None,
    audio_seconds: int | None = None,
    draft: str | PathLike[str] | ModelSpec | None = None,
    draft_tokens: int | None = None,
    reserve: int | str = 0,
    graphs: bool | None = None,
    engine: str | None = None,
    attn: str | None = None,
    trace: bool | None = None,
    cache: str | PathLike[str] | None = None,
    curves: Curves | None = None,
) -> MemoryPlan:
    """What fits on a GPU, computed without one.

    `model` is a directory, a config.json, a catalogue name, or a Hugging Face id; `gpu` is a catalogue name, a size
    such as "24GiB", "auto", or a node such as "8xh100", whose GPUs are all used unless `tp` says fewer. `pp` stages and
    `dp` replicas of `tp` ranks each take tp × pp × dp GPUs; `ep` keeps experts whole. Tokens are numbers, or texts such
    as "32k". What is None is solved for. Activations come from a traced curve where one is
    stored (in `cache`, else where the commands store theirs) or shipped, else from a formula; `trace=True` traces now
    and stores the curve, `trace=False` uses the formula.

        >>> brim.plan("qwen2.5-vl-7b", gpu="rtx-4090", max_len=32768).kv_tokens
    """
    named = _devices(gpu)
    devices = rank_devices(named, tp, pp, dp)
    request = PlanRequest(
        max_len=_count(max_len, "max-len"),
        max_seqs=max_seqs,
        concurrency=concurrency,
        mean_len=_count(mean_len, "mean-len"),
        users=users,
        tokens_per_second=tokens_per_second,
        kv_tokens=_count(kv_tokens, "kv-tokens"),
        batch_tokens=_count(batch_tokens, "batch-tokens"),
        kv_dtype=kv_dtype,
        weights=weights,
        tensor_parallel=tensor_ranks(named, tp, pp, dp),
        pipeline_parallel=pp,
        data_parallel=dp,
        expert_parallel=ep,
        gpu_layers=_text(gpu_layers, "gpu-layers"),
        cpu_moe=_text(cpu_moe, "cpu-moe"),
        lora_rank=lora_rank,
        loras=loras,
        host_kv_bytes=parse_bytes(host_kv, "host-kv") if isinstance(host_kv, str) else host_kv,
        image_pixels=image_pixels,
        images_per_prompt=images_per_prompt,
        audio_seconds=audio_seconds,
        draft_tokens=draft_tokens,
        reserve_bytes=parse_bytes(reserve, "reserve") if isinstance(reserve, str) else reserve,
        graphs=graphs,
        engine=engine,
        attention=attn,
    )
    spec = _spec(model)
    source = None if isinstance(model, ModelSpec) else str(model)
    if curves is None:
        folder = curves_folder() if cache is None else Path(cache)
        curves = find_curves(spec, source, trace=trace, folder=folder, ranks=request.tensor_parallel)
    return make_plan(spec, devices, request, _draft(draft), curves)


def _devices(gpu: str | Device | Sequence[Device]) -> tuple[Device, ...]:
    if isinstance(gpu, str):
        return find_devices(gpu)
    given = tuple(gpu) if isinstance(gpu, Sequence) else (gpu,)
    if not given:
        raise InvalidRequest("gpu is an empty list; name at least one device")
    found = tuple(one for one in given if isinstance(one, Device))
    if len(found) < len(given):
        raise InvalidRequest(f"gpu is {gpu!r}; it must be a name such as 'h200' or '8xh100', a Device, or Devices")
    return found


def _text(value: int | str | None, name: str) -> str | None:
    """A number or "auto", as a request has it."""
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        raise InvalidRequest(f"{name} is {value!r}; it must be a whole number, or 'auto'")
    return None if value is None else str(value)


def _count(value: int | str | None, name: str) -> int | None:
    return parse_count(value, name) if isinstance(value, str) else value


def find_curves(spec: ModelSpec, source: str | None, *, trace: bool | None, folder: Path, ranks: int = 1) -> Curves:
    """The traced curves of a model: stored, shipped, or (with `trace`) traced now from the config at `source`.

    The curve of a step is that of one rank.
    """
    if trace:
        _check_tracing()
    if trace is False or (trace is None and spec.indexes):
        return Curves()  # the model's own code materialises an indexer's scores; engines' kernels do not
    store = CurveStore(folder)
    step = store.read(spec, Phase.PREFILL, ranks) or (shipped_curve(spec, Phase.PREFILL) if ranks == 1 else None)
    vision = store.read(spec, Phase.VISION) or shipped_curve(spec, Phase.VISION)
    if not trace or source is None:
        return Curves(step, vision)
    missing: tuple[Phase, ...] = () if step else (Phase.PREFILL,)
    if vision is None and ranks == 1 and any(tower.media is MediaType.IMAGE for tower in spec.towers):
        missing += (Phase.VISION,)  # with several ranks the formula is used, which shards the tower
    if not missing:
        return Curves(step, vision)
    check_tensor_parallel(spec, ranks)
    made = _traced(source, missing, str(spec.dtype), ranks)
    for curve in made.values():
        try:
            store.write(spec, curve)
        except OSError as error:  # it is traced again next time
            warnings.warn(f"the traced curve could not be stored in {folder}: {error}", stacklevel=2)
    return Curves(step or made.get(Phase.PREFILL), vision or made.get(Phase.VISION))


def _check_tracing() -> None:
    """A trace that was asked for needs its libraries, whether or not there is a curve already."""
    for name in ("torch", "transformers"):
        if find_spec(name) is None:
            raise CannotTrace(f"trace: tracing needs {name}: {install_command('engine')}, or leave out --trace")


def _traced(source: str, phases: tuple[Phase, ...], dtype: str, ranks: int) -> dict[Phase, ActivationCurve]:
    """Curves traced now. A family that cannot be sharded in a trace is left to the formula."""
    from brim.trace.curve import trace_curves

    name, config = load_config(source)
    try:
        return trace_curves(config, name=name, phases=phases, dtype=dtype, ranks=ranks)
    except CannotTrace:
        if ranks == 1:
            raise
        return {}


def _spec(model: str | PathLike[str] | ModelSpec) -> ModelSpec:
    if isinstance(model, ModelSpec):
        return model
    if not isinstance(model, str | PathLike):
        raise InvalidRequest(f"model is {type(model).__name__}; it must be a name, a path or a ModelSpec")
    return load_model(str(model))


def _draft(draft: str | PathLike[str] | ModelSpec | None) -> ModelSpec | None:
    return None if draft is None else _spec(draft)
