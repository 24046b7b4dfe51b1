"""Images taken one at a time: a processor sees what it would see of all of them at once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")
import torch

from brim.engine.media.one_by_one import OneByOne, Pixels, pixels_of, without_pixels

pillow = pytest.importorskip("PIL.Image")

SIZES = ((64, 96), (200, 80), (64, 96))


def images() -> list[Any]:
    return [pillow.effect_noise(size, 60).convert("RGB") for size in SIZES]


def qwen() -> tuple[Any, dict[str, Any]]:
    from transformers import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(), {}


def gemma3() -> tuple[Any, dict[str, Any]]:
    from transformers import Gemma3ImageProcessorPil

    return Gemma3ImageProcessorPil(size={"height": 32, "width": 32}), {}


def internvl() -> tuple[Any, dict[str, Any]]:
    from transformers import GotOcr2ImageProcessorPil

    return GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, crop_to_patches=True, max_patches=4), {}


def gemma4() -> tuple[Any, dict[str, Any]]:
    from transformers import Gemma4ImageProcessorPil

    return Gemma4ImageProcessorPil(), {}


@pytest.mark.parametrize("made", [qwen, gemma3, internvl, gemma4])
@pytest.mark.parametrize("nested", [False, True])
def test_outputs_of_each_are_those_of_all_in_their_order(made: Any, nested: bool) -> None:
    try:
        processor, options = made()
    except ImportError as error:  # an older transformers
        pytest.skip(str(error))
    given = images()
    whole = processor([given] if nested else given, return_tensors="pt", **options)
    one_by_one = OneByOne(processor, [None] * len(given))
    found = one_by_one([given] if nested else given, return_tensors="pt", **options)
    assert set(found) == set(whole)
    for name, value in whole.items():
        joined = [one[name] for one in one_by_one.outputs]
        if isinstance(value, torch.Tensor):
            assert torch.equal(torch.cat(joined), value)
            assert found[name].shape == value.shape
            assert value.is_floating_point() or torch.equal(found[name], value)
        else:
            assert found[name] == value


def test_an_image_that_is_known_is_not_processed_again() -> None:
    processor, _ = qwen()
    first = OneByOne(processor, [None, None])
    wanted = first(images()[:2], return_tensors="pt")
    known = [without_pixels(one) for one in first.outputs]
    assert isinstance(known[0]["pixel_values"], Pixels)
    assert set(pixels_of(first.outputs[0])) == {"pixel_values"}
    again = OneByOne(lambda *_, **__: pytest.fail("it was processed"), known)
    found = again([pillow.new("RGB", (1, 1))] * 2, return_tensors="pt")
    assert found["pixel_values"].shape == wanted["pixel_values"].shape
    assert torch.equal(found["image_grid_thw"], wanted["image_grid_thw"])
    assert found["pixel_values"].untyped_storage().nbytes() == 4  # pixels are elsewhere
