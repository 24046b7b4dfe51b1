"""Digests that come with a processor's output."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("transformers")
import torch

from brim.engine.media.parts import MediaKind, MediaPart
from brim.engine.media.prepare import _told
from brim.engine.media.processed import Processed, part_digest

PARTS = tuple(MediaPart({"pixel_values": torch.full((2, 3), float(value))}, 1) for value in range(2))


def test_they_are_used_where_there_is_one_for_each_part() -> None:
    output = Processed({"pixel_values": 0}, {MediaKind.IMAGE: (b"first", b"second")})
    for given in (output, pickle.loads(pickle.dumps(output))):
        assert dict(given) == {"pixel_values": 0}
        assert [part.digest for part in _told(PARTS, given, MediaKind.IMAGE)] == [b"first", b"second"]
        assert _told(PARTS[:1], given, MediaKind.IMAGE) == PARTS[:1]
        assert _told(PARTS, given, MediaKind.AUDIO) == PARTS
    assert _told(PARTS, {"pixel_values": 0}, MediaKind.IMAGE) == PARTS


def test_a_digest_differs_where_a_pixel_does() -> None:
    same = MediaPart({"pixel_values": torch.zeros(2, 3)}, 1)
    assert part_digest(PARTS[0]) == part_digest(same) != part_digest(PARTS[1])
