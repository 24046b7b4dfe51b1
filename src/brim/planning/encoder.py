"""The step with the largest media input: vision and audio towers in the engine's own process.

The tower runs before the text of the same step, so that the two do not add up: a step with an image takes the larger
of the tower at its worst input, and the text step with the tower's output beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.planning.activation import tower_bytes
from brim.planning.media import worst_positions
from brim.planning.pricer import Pricer
from brim.planning.settings import PlanSettings
from brim.records.model import MediaType, TowerSpec
from brim.records.plan import Source
from brim.units import ceil_div

_SENT_BYTES = 4  # processors send pixels in fp32


@dataclass(frozen=True, slots=True)
class MediaStep:
    """The peak of a step with the largest input, and what that input is."""

    bytes: int
    source: Source
    detail: str


NO_TOWER = MediaStep(0, Source.EXACT, "no vision or audio tower")


def media_step(settings: PlanSettings, pricer: Pricer, context: int, activation: int) -> MediaStep:
    """The worst of the towers, each at the largest input of a prompt."""
    worst = NO_TOWER
    for tower in settings.spec.towers:
        positions, words = worst_positions(
            tower,
            image_pixels=settings.image_pixels,
            images_per_prompt=settings.images_per_prompt,
            audio_seconds=settings.audio_seconds,
            max_len=context,
        )
        size, source = _with_tower(settings, pricer, tower, positions, activation)
        if size > worst.bytes or worst is NO_TOWER:
            worst = MediaStep(size, source, f"{words}, {positions:,} positions")
    return worst


def _with_tower(
    settings: PlanSettings, pricer: Pricer, tower: TowerSpec, positions: int, activation: int
) -> tuple[int, Source]:
    if not positions:
        return 0, Source.EXACT
    element = settings.spec.dtype.bytes
    output = ceil_div(positions, tower.merge) * tower.output * (1 + tower.extra_outputs) * element
    peak, source = _tower_bytes(settings, pricer, tower, positions)
    pixels = tower.pixel_elements if tower.media is MediaType.IMAGE else 0
    encoding = (
        peak
        + positions * pixels * _SENT_BYTES  # as they were sent
        + (positions * pixels * element if element != _SENT_BYTES else 0)  # and in the tower's own type
        + output  # of the input before it
    )
    return max(encoding, activation + output), source


def _tower_bytes(settings: PlanSettings, pricer: Pricer, tower: TowerSpec, positions: int) -> tuple[int, Source]:
    """By the traced curve where there is one for this tower, else by the formula."""
    curve = settings.curves.vision
    if curve is None or settings.tensor_ranks > 1 or tower.media is not MediaType.IMAGE:
        return tower_bytes(tower, positions, settings.spec.dtype.bytes, settings.tensor_ranks), Source.FORMULA
    per_tile = tower.limits.tile_pixels // tower.pixels_per_patch + 1 if curve.unit == "tiles" else 1
    return pricer.traced(curve, ceil_div(positions, per_tile)).peak_bytes, Source.TRACED
