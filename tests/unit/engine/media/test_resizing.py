"""Images beyond the limits: as large as allowed, of the same shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from brim.engine.media.limits import ImageLimits
from brim.engine.media.resizing import resized, smaller_size

EDGE = 28


def limits(tokens: int) -> ImageLimits:
    return ImageLimits(call_patches=tokens * 4, source="a test", pixels_per_patch=14 * 14, merge=4)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 2000))
def test_the_size_is_within_the_limits_and_processors_leave_it_as_it_is(width: int, height: int, most: int) -> None:
    new_width, new_height = smaller_size(width, height, limits(most))
    tokens = max(1, round(new_width / EDGE)) * max(1, round(new_height / EDGE))
    assert tokens <= most
    if (new_width, new_height) != (width, height):
        assert new_width % EDGE == new_height % EDGE == 0


@given(st.integers(500, 5000), st.integers(500, 5000))
def test_the_shape_stays_and_little_is_lost(width: int, height: int) -> None:
    new_width, new_height = smaller_size(width, height, limits(256))
    if (new_width, new_height) != (width, height):
        assert new_width / new_height == pytest.approx(width / height, rel=0.35)
        assert new_width * new_height > 0.6 * 256 * EDGE**2


def test_an_image_is_resized_and_a_small_one_is_the_same_object() -> None:
    pillow = pytest.importorskip("PIL.Image")
    large, small = pillow.new("RGB", (2800, 1400)), pillow.new("RGB", (100, 60))
    assert resized(large, limits(200)).size == (560, 280)
    assert resized(small, limits(200)) is small
