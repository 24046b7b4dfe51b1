"""What a command calls a model, its weights, and how it drafts."""

from __future__ import annotations

from brim.model.quantisers.quantisation import NAMED_FORMATS
from brim.planning.engines.record import Algorithm
from brim.records.model import MediaType, ModelSpec, WeightFormat

_ALGORITHMS = {
    "LlamaForCausalLMEagle3": Algorithm.EAGLE3,
    "PEagleDraftModel": Algorithm.P_EAGLE,
    "DFlashDraftModel": Algorithm.DFLASH,
    "DSparkDraftModel": Algorithm.DSPARK,
}


def checkpoint_format(spec: ModelSpec) -> str:
    """The format of a checkpoint's weights: as `--weights` names it, or else the method it was quantised with."""
    if spec.quantisation is None:
        return str(spec.dtype)
    stored = spec.quantisation.default
    return (format_key(stored) if stored else None) or spec.quantisation.method


def format_key(stored: WeightFormat) -> str | None:
    """What `--weights` calls a format."""
    return next((name for name, known in NAMED_FORMATS.items() if known == stored), None)


def draft_algorithm(spec: ModelSpec) -> Algorithm:
    """How a model drafts, by what its class is made for."""
    return _ALGORITHMS.get(spec.architecture, Algorithm.DRAFT_MODEL)


def limits_pixels(spec: ModelSpec) -> bool:
    """Whether the model's image processor has a limit in pixels; fixed sizes and tiles are no such limit."""
    images = [tower.limits for tower in spec.towers if tower.media is MediaType.IMAGE]
    return any(limits.max_pixels and "processor" in limits.source for limits in images)
