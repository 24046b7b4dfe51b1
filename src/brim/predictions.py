"""What plan and trace predict for an engine, by the names of the fit's ledger.

Steps are traced with the engine's own code: the same model is built on the meta device, assembled like the engine, and
runs the same worst steps, sampler included. What a trace cannot run has no prediction.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brim.errors import BrimError, CannotTrace, InputError
from brim.records.fit import FitReport
from brim.records.memory import StressKind, StressShape
from brim.records.model import Dtype
from brim.records.scaling import MeasuredShape, StepPhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from brim.engine.engine import Engine
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
        shapes = engine.stress_shapes()
        text = [shape for shape in shapes if not shape.has_media and shape.name != StressKind.DRAFT]
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
    """The peak of each of these steps on the meta device, beyond weights, KV pool and CUDA graphs.

    Like the engine's own, a worst step runs beside the results of the one before it.
    """
    import torch

    from brim.engine.model import assemble
    from brim.engine.pool.build import build_loop
    from brim.engine.stress.text import least_stress_tokens, steps_before, text_step
    from brim.engine.stress.unread import UnreadResults
    from brim.trace.tracer import watched
    from brim.trace.watch import StorageWatch

    loaded = _on_meta_device(engine)
    settings = replace(engine.settings, graphs=False, compile=False)  # steps as they are written
    watch = StorageWatch([*loaded.model.parameters(), *loaded.model.buffers()])
    worst, unread, peaks = engine.stress_shapes(), UnreadResults(), []
    with watched(watch, "engine"):
        model = assemble(loaded, settings, torch.device("meta"))
        ledger = build_loop(model, least_stress_tokens(settings)).scheduler.ledger
        for shape in shapes:
            before = steps_before(shape, worst) if settings.overlap else ()
            for one in before:
                unread.learn(one, model.runner, ledger, model.max_length)
            with text_step(shape, model.runner, ledger, model.max_length) as plan:
                held = watch.forget_peak()
                results = unread.blank(model.runner.shape.device) if before else []
                model.runner.launch(plan, ledger)
                peaks.append(watch.peak_bytes - held)
                del results
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
    from brim.engine.media.families import feature_levels

    return _traced_part(engine, image, levels=feature_levels(engine.loaded.full_config))


def traced_audio(engine: Engine) -> int | None:
    """The peak of the tower for the longest audio, with another's features alive; None if it does not run here."""
    audio = engine.worst_audio()
    if audio is None or engine.feature_bytes:
        return None
    return _traced_part(engine, audio, levels=1)


def _traced_part(engine: Engine, part: MediaPart, *, levels: int) -> int:
    config = engine.loaded.full_config
    before_it = part.tokens * int(config.get_text_config().hidden_size) * levels * _element_bytes(engine.dtype)
    on_device = engine.device.type == "cuda"
    return before_it + traced_tower(config, part.inputs, part.tokens, dtype=engine.dtype, on_device=on_device)


def traced_tower(config: Any, inputs: Mapping[str, torch.Tensor], tokens: int, *, dtype: str, on_device: bool) -> int:
    """The peak of the call that makes features of these inputs, beyond the weights; with copies of them on a device.

    Pixels and audio lose their values. Grids, positions and masks keep them: they decide shapes.
    """
    import torch

    from brim.engine.media.towers import features_of
    from brim.trace.build import build_model
    from brim.trace.tracer import watched
    from brim.trace.watch import StorageWatch

    model, _ = build_model(config.to_dict(), dtype)
    host = {name: tensor.to("meta") if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    if "image_grid_thw" in host:
        host |= _near_squares(host["pixel_values"], host["image_grid_thw"], config.vision_config.spatial_merge_size)
    watch = StorageWatch([*model.parameters(), *model.buffers(), *host.values()])
    with watched(watch, "engine"):
        sent = {name: torch.clone(tensor) for name, tensor in host.items()} if on_device else host
        features_of(model, sent, tokens)
    return watch.peak_bytes


def _near_squares(pixels: torch.Tensor, grids: torch.Tensor, merge: int) -> dict[str, torch.Tensor]:
    """Images of as many patches or a few more, in other shapes: strips take no more, and have more windows to trace."""
    import torch

    from brim.engine.media.limits import near_square

    tokens = [(frames, height // merge * (width // merge)) for frames, height, width in grids.tolist()]
    squarer = torch.tensor([[frames, *(side * merge for side in near_square(count))] for frames, count in tokens])
    patches = int(squarer.prod(dim=1).sum())
    return {"pixel_values": pixels.new_empty((patches, pixels.shape[1])), "image_grid_thw": squarer}


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
