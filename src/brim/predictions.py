"""What plan and trace predict for an engine, by the names of the fit's ledger.

Steps are traced with the engine's own code: the same model is built on the meta device, assembled like the engine, and
runs the same worst steps, sampler included. What a trace cannot run has no prediction.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brim.errors import BrimError, CannotTrace, InputError
from brim.records.fit import DRAFT_SHAPE, MEDIA_SHAPES, FitReport
from brim.records.memory import StressShape
from brim.records.model import Dtype
from brim.records.scaling import MeasuredShape, StepPhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from brim.engine.engine import Engine
    from brim.engine.media.limits import ImageLimits
    from brim.engine.media.parts import MediaPart
    from brim.engine.weights.load import LoadedModel


def predicted_bytes(engine: Engine, report: FitReport) -> dict[str, int]:
    """A prediction for each line of the ledger that has one."""
    predicted = {"kv": report.kv_bytes, "canary": report.canary_bytes, "keep_free": report.keep_free_bytes}
    predicted["features"] = engine.feature_bytes
    activation = predicted_activation(engine)
    if activation is not None:
        predicted["activation"] = activation
    for traced in (traced_image, traced_audio):
        with suppress(CannotTrace):
            tower = traced(engine)
            if tower is not None:  # the step follows the tower, and its peak may be the larger one
                predicted["encoder"] = max(tower, predicted.get("encoder", 0), predicted.get("activation", 0))
    with suppress(InputError):  # a family the planner does not know
        predicted |= _planned(engine)
    return predicted


def predicted_activation(engine: Engine) -> int | None:
    """The peak of the worst text step; None for a model that cannot be assembled on the meta device."""
    try:
        text = [shape for shape in engine.stress_shapes() if shape.name not in (*MEDIA_SHAPES, DRAFT_SHAPE)]
        return max(traced_steps(engine, text))
    except BrimError:  # a fit does not fail because a prediction does
        return None


def traced_prefill(engine: Engine, sizes: Iterable[int]) -> tuple[MeasuredShape, ...]:
    """Points of the traced prefill curve of this model, at these tokens; none if no curve of it is stored."""
    from brim.folders import curves_folder
    from brim.model.config import read_config
    from brim.records.trace import Phase
    from brim.trace.store import CurveStore, shipped_curve

    ranks = 1 if engine.ranks is None else engine.ranks.size
    try:
        spec = replace(read_config(engine.loaded.full_config.to_dict(), name="engine"), dtype=Dtype(engine.dtype))
    except InputError:  # a family the planner does not know
        return ()
    curve = CurveStore(curves_folder()).read(spec, Phase.PREFILL, ranks)
    if curve is None and ranks == 1:
        curve = shipped_curve(spec, Phase.PREFILL)
    if curve is None:
        return ()
    return tuple(MeasuredShape(StepPhase.PREFILL, 1, size, 0, curve.peak_bytes(size)) for size in sizes)


def traced_steps(engine: Engine, shapes: Sequence[StressShape]) -> list[int]:
    """The peak of each of these steps on the meta device, beyond weights, KV pool and CUDA graphs."""
    import torch

    from brim.engine.assemble import assemble
    from brim.engine.stress.text import least_stress_tokens, text_step
    from brim.trace.tracer import watched
    from brim.trace.watch import StorageWatch

    loaded = _on_meta_device(engine)
    settings = replace(engine.settings, graphs=False, compile=False)  # steps as they are written
    watch = StorageWatch([*loaded.model.parameters(), *loaded.model.buffers()])
    peaks = []
    with watched(watch, "engine"):
        parts = assemble(loaded, settings, torch.device("meta"))
        ledger = parts.build(least_stress_tokens(settings)).scheduler.ledger
        for shape in shapes:
            with text_step(shape, parts.runner, ledger, parts.max_length) as plan:
                held = watch.forget_peak()
                parts.runner.launch(plan, ledger)
                peaks.append(watch.peak_bytes - held)
    return peaks


def _on_meta_device(engine: Engine) -> LoadedModel:
    """The model of an engine, or of one of its ranks, on the meta device."""
    from brim.engine.attention.paged import NAME
    from brim.trace.build import build_model
    from brim.trace.parallel import rank_config

    config = rank_config(engine.loaded.full_config.to_dict(), 1 if engine.ranks is None else engine.ranks.size)
    model, attention = build_model(config, engine.dtype, NAME)
    if attention != NAME:
        raise CannotTrace(f"'{config.get('model_type')}' does not use the attention interface of transformers")
    return replace(engine.loaded, model=model, config=model.config.get_text_config(), full_config=model.config)


def traced_image(engine: Engine) -> int | None:
    """The peak of the tower for the largest image, with another's features alive; None if it does not run here."""
    image, limits = engine.worst_image(), engine.image_limits
    if image is None or limits is None or engine.feature_bytes:
        return None
    config = engine.loaded.full_config
    hidden = int(config.get_text_config().hidden_size)
    deep = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())
    before_it = image.tokens * hidden * (1 + deep) * _element_bytes(engine.dtype)
    call = traced_tower(config, limits, image, dtype=engine.dtype, on_device=engine.device.type == "cuda")
    return call + before_it


def traced_tower(config: Any, limits: ImageLimits, image: MediaPart, *, dtype: str, on_device: bool) -> int:
    """The peak of a tower's call for an image, beyond the weights."""
    from brim.records.trace import Phase, TraceShape
    from brim.trace.tracer import trace_config

    patches = limits.patches(image)
    merge_edge = math.isqrt(limits.merge)
    edge = (math.isqrt(max(0, patches // limits.merge - 1)) + 1) * merge_edge  # only squares are traced
    trace = trace_config(config.to_dict(), TraceShape(phase=Phase.VISION, tokens=edge**2), name="engine", dtype=dtype)
    pixels = image.inputs["pixel_values"]
    element = _element_bytes(dtype)
    tiled = pixels.dim() == 4  # a trace of tiles is always of one tile
    return (
        (trace.peak_bytes if tiled else trace.peak_bytes * patches // edge**2)
        + (pixels.nbytes if on_device else 0)  # as they were sent
        + (pixels.numel() * element if element != pixels.element_size() else 0)  # and in the tower's own type
    )


def traced_audio(engine: Engine) -> int | None:
    """The peak of the tower for the longest audio, with another's features alive; None if it does not run here."""
    audio = engine.worst_audio()
    if audio is None or engine.feature_bytes:
        return None
    config = engine.loaded.full_config
    before_it = audio.tokens * int(config.get_text_config().hidden_size) * _element_bytes(engine.dtype)
    call = traced_audio_tower(config, audio, dtype=engine.dtype, on_device=engine.device.type == "cuda")
    return call + before_it


def traced_audio_tower(config: Any, audio: MediaPart, *, dtype: str, on_device: bool) -> int:
    """The peak of a tower's call for an audio, beyond the weights."""
    from brim.records.trace import Phase, TraceShape
    from brim.trace.tracer import trace_config

    features = audio.inputs["input_features"]
    frames = max(tensor.shape[-1] for name, tensor in audio.inputs.items() if name != "input_features")  # of the mask
    trace = trace_config(config.to_dict(), TraceShape(phase=Phase.AUDIO, tokens=frames), name="engine", dtype=dtype)
    element = _element_bytes(dtype)
    return (
        trace.peak_bytes
        + (features.nbytes if on_device else 0)  # as they were sent
        + (features.numel() * element if element != features.element_size() else 0)  # and in the tower's own type
    )


def _element_bytes(dtype: str) -> int:
    return 4 if dtype == "fp32" else 2


def _planned(engine: Engine) -> dict[str, int]:
    from brim.model.config import read_config
    from brim.model.kv import kv_footprint
    from brim.model.weights import weight_bytes

    ranks = 1 if engine.ranks is None else engine.ranks.size
    spec = read_config(engine.loaded.full_config.to_dict(), name="engine")
    spec = replace(spec, dtype=Dtype(engine.dtype), quantisation=None)
    if engine.encoders is not None:
        spec = replace(spec, towers=())  # they are in other processes
    rows = engine.settings.max_batch + 1 + engine.settings.max_drafted  # one is for padding, some are for snapshots
    draft_bytes = 0
    if engine.draft is not None:
        draft = read_config(engine.draft.full_config.to_dict(), name="draft")
        draft_bytes = weight_bytes(replace(draft, dtype=Dtype(engine.dtype), quantisation=None), 1).rank_bytes
    return {
        "weights": weight_bytes(spec, ranks).rank_bytes + draft_bytes,
        "state": kv_footprint(spec, spec.dtype, ranks).state_bytes_per_request * rows,
    }
