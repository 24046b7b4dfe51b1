"""Images of a processor taken one at a time, so that what was made of one can be found again and is not made twice.

Stands in place of a processor's own image processor. What it returns for several images is what that would return, but
for the pixels: those of each image stay by themselves (`outputs`), and in their place is a tensor of the same shape
that takes no memory. Processors look at shapes and counts only, to write as many tokens as each image takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Output = dict[str, Any]  # of one image: tensors, lists, and `Pixels` in place of tensors of floats that are elsewhere


@dataclass(frozen=True, slots=True)
class Pixels:
    """A tensor of floats that is not here."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def without_pixels(output: Mapping[str, Any]) -> Output:
    """All but the tensors of floats."""
    return {name: Pixels(tuple(one.shape), one.dtype) if _is_floats(one) else one for name, one in output.items()}


def pixels_of(output: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of floats."""
    return {name: one for name, one in output.items() if _is_floats(one)}


class OneByOne:
    """An image processor for the images of one prompt, some of which may be known."""

    def __init__(self, image_processor: Any, known: Sequence[Output | None]) -> None:
        self._image_processor = image_processor
        self._known = known
        self.outputs: list[Output] = []  # of each image, once it was called

    def __getattr__(self, name: str) -> Any:
        return getattr(self._image_processor, name)

    def __call__(self, images: Any, *arguments: Any, **options: Any) -> Any:
        from transformers import BatchFeature

        nested = isinstance(images[0], list | tuple)
        flat = [one for some in images for one in some] if nested else list(images)
        assert len(flat) == len(self._known), "processors keep the number of images"
        self.outputs = [
            known or self._output([[one]] if nested else [one], *arguments, **options)
            for one, known in zip(flat, self._known, strict=True)
        ]
        return BatchFeature({name: _joined([one[name] for one in self.outputs]) for name in self.outputs[0]})

    def _output(self, images: Any, *arguments: Any, **options: Any) -> Output:
        found = self._image_processor(images, *arguments, **options)
        return {name: torch.as_tensor(one) if hasattr(one, "__array__") else one for name, one in found.items()}


def _is_floats(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _joined(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Pixels) or _is_floats(values[0]):
        first = values[0]
        return torch.zeros((), dtype=first.dtype).expand(sum(one.shape[0] for one in values), *first.shape[1:])
    if isinstance(values[0], torch.Tensor):
        return torch.cat(list(values))
    return [one for some in values for one in some]
