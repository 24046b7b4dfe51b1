"""As little in host memory as possible: `--gpu-layers auto` and `--cpu-moe auto`, and what advice proposes.

In: settings. Out: settings with a number, the first that fits; everything on the host where none does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from brim.planning.pricer import Pricer
from brim.planning.settings import PlanSettings
from brim.planning.solving.solve import solve


def settle(settings: PlanSettings, pricer: Pricer) -> PlanSettings:
    """Settings whose placement has no number open."""
    placement, layers = settings.placement, len(settings.spec.layers)
    if placement.open_cpu_experts:
        return _first_that_fits(settings, pricer, layers, lambda number: with_cpu_experts(settings, number))
    if placement.open_gpu_layers:
        return _first_that_fits(settings, pricer, layers, lambda number: with_host_layers(settings, number))
    return settings


def with_cpu_experts(settings: PlanSettings, layers: int) -> PlanSettings:
    """With the experts of so many layers in host memory."""
    return replace(settings, placement=replace(settings.placement, cpu_experts=layers, open_cpu_experts=False))


def with_host_layers(settings: PlanSettings, layers: int) -> PlanSettings:
    """With so many layers in host memory, and the output on the GPU."""
    kept = len(settings.spec.layers) + 1 - layers if layers else None
    return replace(settings, placement=replace(settings.placement, gpu_layers=kept, open_gpu_layers=False))


def _first_that_fits(
    settings: PlanSettings, pricer: Pricer, most: int, varied: Callable[[int], PlanSettings]
) -> PlanSettings:
    """By halving: more in host memory leaves more room on the device."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if solve(varied(middle), pricer).fits else (middle + 1, high)
    return varied(low)
