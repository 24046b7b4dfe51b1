"""The distinct devices of a placement, as settings: each is priced and filled like a model of its own.

In: settings of a whole model. Out: one `Settings` for each device that differs from the others, in the order of their
stages; the settings themselves where every device holds the same share.
"""

from __future__ import annotations

from dataclasses import replace

from brim.planning.placement.experts import cut_experts, has_experts, whole_experts
from brim.planning.placement.offload import device_parts
from brim.planning.placement.record import PlacedPart, StageRule
from brim.planning.placement.stages import stage_parts
from brim.planning.settings import PlanSettings
from brim.records.model import ModelSpec


def part_settings(settings: PlanSettings) -> tuple[PlanSettings, ...]:
    """What is filled, device by device."""
    placement = settings.placement
    if settings.part is not None or placement.is_plain:
        return (settings,)
    whole = settings.spec
    return tuple(replace(settings, spec=part.spec, part=replace(part, whole=whole)) for part in _parts(settings))


def _parts(settings: PlanSettings) -> tuple[PlacedPart, ...]:
    spec, placement, engine = settings.spec, settings.placement, settings.engine
    if placement.offloads:
        return device_parts(spec, placement, settings.ranks, settings.stored, settings.weights_dtype)
    rule = engine.stage_rule if engine else StageRule.BEFORE_LAST
    everywhere = engine is not None and engine.towers_everywhere
    return stage_parts(_replica(settings), placement.pipeline, rule, towers_everywhere=everywhere)


def _replica(settings: PlanSettings) -> ModelSpec:
    """What a replica holds of the experts that replicas share."""
    spec, placement, engine = settings.spec, settings.placement, settings.engine
    if placement.expert_parallel:
        return whole_experts(spec, settings.ranks * placement.replicas)
    if placement.replicas > 1 and engine is not None and engine.shares_experts and has_experts(spec):
        return cut_experts(spec, placement.replicas)
    return spec
