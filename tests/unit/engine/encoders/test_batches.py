"""What is encoded in one call: never more than was run."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from brim.engine.encoders.batches import elements, first_batch, joined
from brim.engine.encoders.records import MOST_PARTS, TowerFacts
from brim.engine.media.parts import MediaKind, MediaPart

WIDTH = 4


def part(patches: int, width: int = WIDTH) -> MediaPart:
    grid = torch.tensor([[1, 1, patches]])
    return MediaPart({"pixel_values": torch.zeros(patches, width), "image_grid_thw": grid}, patches)


def facts(patches: int) -> TowerFacts:
    return TowerFacts(
        budgets={"image_grid_thw pixel_values": patches * WIDTH, "input_features": patches * WIDTH},
        call_patches=patches,
        audio_frames=patches,
        rows=patches,
        part_rows=patches,
        width=8,
        levels=1,
        dtype="float32",
        input_bytes=1 << 20,
        weight_bytes=0,
        predicted_bytes=None,
        promised_bytes=0,
        held_bytes=0,
        peak_bytes=0,
    )


@given(st.lists(st.integers(1, 40), max_size=80), st.integers(1, 100))
def test_a_batch_is_the_longest_beginning_that_fits(sizes: list[int], budget: int) -> None:
    parts = [part(size) for size in sizes]
    count = first_batch(parts, facts(budget))
    assert sum(sizes[:count]) <= budget
    assert count == min(len(sizes), MOST_PARTS) or sum(sizes[: count + 1]) > budget


def test_only_parts_of_the_same_form_go_together() -> None:
    assert first_batch([part(1), part(1), part(1, width=8), part(1)], facts(50)) == 2
    assert first_batch([MediaPart({"input_values": torch.zeros(1, 8)}, 1)], facts(50)) == 0
    inputs = joined([part(2).inputs, part(3).inputs])
    assert inputs["pixel_values"].shape == (5, WIDTH)
    assert inputs["image_grid_thw"].tolist() == [[1, 1, 2], [1, 1, 3]]
    assert elements(inputs) == 5 * WIDTH


def test_audios_go_one_by_one() -> None:
    audio = MediaPart({"input_features": torch.zeros(1, WIDTH, 5)}, 1, MediaKind.AUDIO)
    assert first_batch([audio, audio], facts(50)) == 1
    assert first_batch([part(1), audio], facts(50)) == 1
    assert first_batch([audio], facts(4)) == 0
