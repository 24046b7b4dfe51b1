"""The Python API: the same records that the commands print."""

from __future__ import annotations

from os import PathLike

from brim.errors import InvalidRequest
from brim.model.source import load_model
from brim.plan.devices import find_device
from brim.plan.plan import make_plan
from brim.records.model import ModelSpec
from brim.records.plan import Device, MemoryPlan, PlanRequest
from brim.units import parse_bytes


def plan(
    model: str | PathLike[str] | ModelSpec,
    *,
    gpu: str | Device,
    max_len: int | None = None,
    max_seqs: int | None = None,
    kv_tokens: int | None = None,
    batch_tokens: int | None = None,
    kv_dtype: str | None = None,
    weights: str | None = None,
    tp: int = 1,
    image_pixels: int | None = None,
    images_per_prompt: int | None = None,
    audio_seconds: int | None = None,
    draft: str | PathLike[str] | ModelSpec | None = None,
    reserve: int | str = 0,
    graphs: bool = True,
    engine: str | None = None,
    attn: str | None = None,
) -> MemoryPlan:
    """What fits on a GPU, before there is one.

    `model` is a directory, a config.json, a catalogue name, or a Hugging Face id; `gpu` is a catalogue name, a size
    such as "24GiB", or "auto". What is left None is solved for.

        >>> brim.plan("qwen2.5-vl-7b", gpu="rtx-4090", max_len=32768).kv_tokens
    """
    request = PlanRequest(
        max_len=max_len,
        max_seqs=max_seqs,
        kv_tokens=kv_tokens,
        batch_tokens=batch_tokens,
        kv_dtype=kv_dtype,
        weights=weights,
        tensor_parallel=tp,
        image_pixels=image_pixels,
        images_per_prompt=images_per_prompt,
        audio_seconds=audio_seconds,
        reserve_bytes=parse_bytes(reserve, "reserve") if isinstance(reserve, str) else reserve,
        graphs=graphs,
        engine=engine,
        attention=attn,
    )
    return make_plan(_spec(model), find_device(gpu) if isinstance(gpu, str) else gpu, request, _draft(draft))


def _spec(model: str | PathLike[str] | ModelSpec) -> ModelSpec:
    if isinstance(model, ModelSpec):
        return model
    if not isinstance(model, str | PathLike):
        raise InvalidRequest(f"model is {type(model).__name__}; it must be a name, a path or a ModelSpec")
    return load_model(str(model))


def _draft(draft: str | PathLike[str] | ModelSpec | None) -> ModelSpec | None:
    return None if draft is None else _spec(draft)
