"""Lower what was left open until what was asked for fits: tokens of a step, requests at once, images, graphs.

Nothing that the user gave is touched. Settings are lowered in turns, those that cost the least first, and then each is
raised again as far as the others allow: only what has to be lowered stays lowered. A lower setting may need more memory
(vLLM compiles the embedding of a model without images with a table of its own), so where nothing fits, the answer is
the choice that comes closest, not the lowest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from brim.planning.pricer import Pricer, StepLoad
from brim.planning.settings import PlanSettings
from brim.planning.solving.fill import Filled, Filler
from brim.records.model import MediaType
from brim.records.plan import Lowered

SMALLEST_STEP = 256
_FEWEST_PIXELS = 448 * 448
_FEWER_RUNNING = (64, 16, 4, 1)

# How far each setting is lowered before the next one is, as an index into its values; -1 is the lowest.
_TURNS = (
    ("batch_tokens", 2),
    ("max_seqs", 2),
    ("batch_tokens", 4),
    ("image_pixels", -1),
    ("max_seqs", -1),
    ("graphs", -1),
    ("batch_tokens", -1),
    ("images_per_prompt", -1),
)
_RAISED_FIRST = ("images_per_prompt", "graphs", "image_pixels", "max_seqs", "batch_tokens")

Choice = Mapping[str, Any]  # a value for each setting


def lower(settings: PlanSettings, pricer: Pricer, usual: StepLoad, length: int) -> tuple[Filled, tuple[Lowered, ...]]:
    """The device with as little lowered as possible so that requests of a length fit, or come closest to it."""
    descent = _Descent(settings, pricer, usual, length)
    choice = descent.first_that_fits()
    choice = descent.runnable(descent.closest() if choice is None else descent.raised(choice))
    return descent.filled(choice), descent.changes(choice)


class _Descent:
    """The values that each setting may take, usual first, and whether what was asked for fits with some of them."""

    def __init__(self, settings: PlanSettings, pricer: Pricer, usual: StepLoad, length: int) -> None:
        self._settings = settings
        self._pricer = pricer
        self._length = length
        self._values: dict[str, list[Any]] = {
            "batch_tokens": _steps(settings),
            "max_seqs": _running(settings, usual),
            "image_pixels": _pixels(settings),
            "graphs": [None, False] if settings.graphs is None else [settings.graphs],
            "images_per_prompt": _images(settings),
        }

    def filled(self, choice: Choice) -> Filled:
        load = StepLoad(choice["batch_tokens"], self.runnable(choice)["max_seqs"])
        others = {name: value for name, value in choice.items() if name not in ("batch_tokens", "max_seqs")}
        return Filler(replace(self._settings, **others), self._pricer).filled(load, self._length)

    def runnable(self, choice: Choice) -> Choice:
        """With no more requests at once than a step has tokens for."""
        running = self._settings.running_within(choice["batch_tokens"], choice["max_seqs"])
        return {**choice, "max_seqs": running}

    def fits(self, choice: Choice) -> bool:
        return self.slack_bytes(choice) >= 0

    def slack_bytes(self, choice: Choice) -> int:
        return self.filled(choice).slack_bytes(self._length)

    def closest(self) -> Choice:
        return max(self._downwards(), key=self.slack_bytes)

    def first_that_fits(self) -> Choice | None:
        return next((choice for choice in self._downwards() if self.fits(choice)), None)

    def _downwards(self) -> Iterator[Choice]:
        """Ever lower settings, those that cost the least first."""
        choice = {name: values[0] for name, values in self._values.items()}
        yield choice
        for name, upto in _TURNS:
            values = self._values[name]
            done = values.index(choice[name])
            for value in values[done + 1 : len(values) if upto == -1 else upto + 1]:
                choice = {**choice, name: value}
                yield choice

    def raised(self, choice: Choice) -> Choice:
        """What fits, with every setting as high as the others allow."""
        for name in _RAISED_FIRST:
            values = self._values[name]
            higher = ({**choice, name: value} for value in values[: values.index(choice[name])])
            choice = next((one for one in higher if self.fits(one)), choice)
        return self._with_finer_step(choice)

    def _with_finer_step(self, choice: Choice) -> Choice:
        """The most tokens of a step between two halves of the usual ones."""
        steps = self._values["batch_tokens"]
        low = choice["batch_tokens"] // SMALLEST_STEP
        high = steps[max(0, steps.index(choice["batch_tokens"]) - 1)] // SMALLEST_STEP
        while low + 1 < high:
            middle = (low + high) // 2
            finer = {**choice, "batch_tokens": middle * SMALLEST_STEP}
            low, high, choice = (middle, high, finer) if self.fits(finer) else (low, middle, choice)
        return choice

    def changes(self, choice: Choice) -> tuple[Lowered, ...]:
        usual = {name: values[0] for name, values in self._values.items()}
        return tuple(
            Lowered(name, self._words(name, usual[name]), self._words(name, value))
            for name, value in choice.items()
            if value != usual[name]
        )

    def _words(self, name: str, value: Any) -> str:
        if name == "graphs":
            return "off" if value is False else "on"
        if value is None:
            return "1" if name == "images_per_prompt" else str(largest_image(self._settings))
        return str(value)


def _steps(settings: PlanSettings) -> list[int]:
    if settings.batch_tokens is not None:
        return [settings.batch_tokens]
    steps, smallest = [settings.usual_step], max(SMALLEST_STEP, settings.least_step)
    while steps[-1] > smallest:
        steps.append(max(smallest, steps[-1] // 2))
    return steps


def _running(settings: PlanSettings, usual: StepLoad) -> list[int]:
    if settings.max_seqs is not None:
        return [settings.max_seqs]
    fewer = (max(number, settings.full_requests) for number in _FEWER_RUNNING)
    return list(dict.fromkeys([usual.running, *(number for number in fewer if number < usual.running)]))


def _images(settings: PlanSettings) -> list[int | None]:
    open_ = settings.images_per_prompt is None and largest_image(settings) > 0
    return [None, 0] if open_ else [settings.images_per_prompt]


def _pixels(settings: PlanSettings) -> list[int | None]:
    """Quarters of the largest image, where its size was left open."""
    if settings.image_pixels is not None:
        return [settings.image_pixels]
    found: list[int | None] = [None]
    pixels = largest_image(settings) // 4
    while pixels >= _FEWEST_PIXELS:
        found.append(pixels)
        pixels //= 4
    return found


def largest_image(settings: PlanSettings) -> int:
    """The pixels of the largest image that the processor allows; 0 for a model without images."""
    limits = [tower.limits for tower in settings.spec.towers if tower.media is MediaType.IMAGE]
    return max((max(limit.max_pixels, limit.tile_pixels * limit.max_tiles) for limit in limits), default=0)
