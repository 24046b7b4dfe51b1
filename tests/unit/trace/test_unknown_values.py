"""What the model's code is told about masks on the meta device."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from brim.trace.watch import StorageWatch, watching  # noqa: E402


@pytest.mark.parametrize("values", [[1, 1, 1], [1, 0, 1]])
def test_a_mask_that_was_copied_is_as_true_as_what_it_was_copied_from(values: list[int]) -> None:
    mask = torch.tensor(values)
    with watching(StorageWatch(())):
        copied = mask.to(device="meta", dtype=torch.bool)
        assert bool(copied.all()) == all(values)
        assert bool(copied.logical_not().all()), "of what is computed from it nothing is known"


def test_other_masks_are_taken_as_true() -> None:
    with watching(StorageWatch(())):
        assert bool(torch.zeros(3, dtype=torch.bool, device="meta").all())
