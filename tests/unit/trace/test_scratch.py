"""Scratch of kernels, beside what an H200's allocator counted for them (peak less what was kept)."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brim.trace.watch import StorageWatch, watching  # noqa: E402

COUNTED = [
    ("sort", 1, 128_256, 4_137_472),
    ("sort", 8, 128_256, 46_047_232),
    ("sort", 64, 32_000, 91_881_472),
    ("sort", 64, 262_144, 742_391_808),
    ("sort", 256, 128_256, 1_051_721_728),
    ("logsumexp", 64, 128_256, 33_555_456),
    ("logsumexp", 8, 32_000, 1_025_024),
    ("count", 64, 128_256, 73_875_968),
    ("count", 8, 32_000, 2_304_512),
    ("argmax", 64, 262_144, 10_240),
]
OPERATIONS: dict[str, Any] = {
    "sort": lambda scores: scores.sort(dim=-1, descending=True),
    "logsumexp": lambda scores: scores.logsumexp(-1, keepdim=True),
    "count": lambda scores: (scores > 0).sum(-1),
    "argmax": lambda scores: scores.argmax(-1),
}


@pytest.mark.parametrize(("name", "rows", "width", "peak"), COUNTED)
def test_the_peak_of_an_operation(name: str, rows: int, width: int, peak: int) -> None:
    scores = torch.empty(rows, width, device="meta")
    watch = StorageWatch([scores])
    with watching(watch):
        result = OPERATIONS[name](scores)
    assert watch.peak_bytes == pytest.approx(peak, rel=0.03, abs=16 * 1024)
    assert watch.live_bytes < peak or name == "argmax"
    del result
    assert watch.live_bytes == 0


def test_other_types_are_not_guessed() -> None:
    watch = StorageWatch(())
    with watching(watch):
        numbers = torch.empty(64, 1000, dtype=torch.int64, device="meta")
        result = numbers.sort(dim=-1)
    assert watch.peak_bytes == 3 * 64 * 1000 * 8
    del result
