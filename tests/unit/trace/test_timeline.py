"""The timeline of a watch: the lives of allocations beside the live bytes that the watch counted."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brim.records.trace import Timeline  # noqa: E402
from brim.trace.watch import StorageWatch, watching  # noqa: E402


def recorded(body: Any) -> tuple[StorageWatch, Timeline]:
    watch = StorageWatch((), records_operations=True)
    with torch.no_grad(), watching(watch):
        kept = body()
        watch.finish()
    del kept
    timeline = watch.timeline()
    assert timeline is not None
    return watch, timeline


def step() -> Any:
    scores = torch.empty(64, 1000, device="meta")
    for _ in range(3):
        doubled = scores * 2
        ordered = doubled.sort(dim=-1)  # with scratch that is freed inside the operation
        scores = ordered.values.view(64, 1000) + 1
        del ordered
    return scores


def test_the_live_allocations_add_up_after_every_operation() -> None:
    watch, timeline = recorded(step)
    for index, operation in enumerate(timeline.operations):
        assert sum(made.bytes for made in timeline.allocations if made.is_live_at(index)) == operation.live_bytes
    assert timeline.operations[timeline.peak_at].live_bytes == watch.peak_bytes
    alive = sorted(made.bytes for made in timeline.allocations if made.is_live_at(timeline.peak_at))
    assert alive == sorted(one.bytes for one in watch.alive_at_peak())


def test_lives_begin_and_end_where_they_do() -> None:
    _, timeline = recorded(step)
    names = [operation.name for operation in timeline.operations]
    assert names[:4] == ["aten.empty.memory_format", "aten.mul.Tensor", "aten.sort.default", "aten.view.default"]
    scratch = next(made for made in timeline.allocations if made.op == "aten.sort.default" and len(made.shape) == 1)
    assert (scratch.made_at, scratch.freed_at) == (2, 3)
    assert timeline.allocations[-1].freed_at == len(timeline.operations)


def test_nothing_is_recorded_unless_asked_for() -> None:
    watch = StorageWatch(())
    with watching(watch):
        step()
    assert watch.timeline() is None
