"""Stacks add up: every column to the live bytes of its operation, the peak to the peak."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.cli.show.drawing.owners import ModelComponent, Owner
from brim.cli.show.drawing.stacks import Stack, changing_operations, largest, layer_at_the_peak, stacked
from brim.records.trace import Allocation, Timeline
from tests.unit.cli.show.drawing.steps import decoder, timeline_of

OPERATIONS = 30
MODULES = [f"model.layers.{layer}.{part}" for layer in range(3) for part in ("mlp", "self_attn", "norm", "what")]


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    operations = [("aten.mul.Tensor", draw(st.sampled_from(MODULES))) for _ in range(OPERATIONS)]
    spans = draw(st.lists(st.tuples(st.integers(0, OPERATIONS - 1), st.integers(0, OPERATIONS)), min_size=1))
    allocations = [
        Allocation(512 * draw(st.integers(1, 50)), *operations[start], (1,), start, max(start, end))
        for start, end in spans
    ]
    return timeline_of(operations, [Allocation(512, *operations[0], (1,), 0, 1), *allocations])


def by_module(made: Allocation) -> Owner:
    return Owner(made.module, ModelComponent.OTHER if "what" in made.module else ModelComponent.NORM)


def sums(stack: Stack) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*(band.bytes for band in stack.bands), strict=True))


@given(timelines(), st.integers(1, 40), st.integers(1, 12))
def test_bands_add_up_to_the_live_bytes(timeline: Timeline, columns: int, named: int) -> None:
    whole = stacked(timeline, range(OPERATIONS), by_module, columns)
    part = stacked(timeline, layer_at_the_peak(timeline), by_module, columns)
    for stack in (whole, part, largest(whole, named), largest(part, named)):
        live = tuple(timeline.operations[index].live_bytes for index in stack.operations)
        assert sums(stack) == stack.live_bytes == live
        assert len(stack.operations) <= max(columns, 1)
        assert stack.operations[stack.peak] == timeline.peak_at
        assert sum(band.peak_bytes for band in stack.bands) == timeline.operations[timeline.peak_at].live_bytes
        assert all(max(band.bytes) <= band.most_bytes for band in stack.bands)


@given(timelines(), st.integers(1, 12))
def test_the_largest_are_named_and_nothing_is_lost(timeline: Timeline, named: int) -> None:
    stack = stacked(timeline, range(OPERATIONS), by_module, OPERATIONS)
    fewer = largest(stack, named)
    assert len(fewer.bands) <= named + len(ModelComponent)
    if len(stack.bands) <= named:
        assert fewer == stack
    assert max(stack.bands, key=lambda band: band.peak_bytes).peak_bytes in {band.peak_bytes for band in fewer.bands}


def test_the_layer_at_the_peak_is_its_operations() -> None:
    timeline = decoder(layers=4)
    span = layer_at_the_peak(timeline)
    assert {timeline.operations[index].module.split(".")[2] for index in span} == {"1"}
    assert timeline.peak_at in span
    assert len(span) == 6


def test_a_shared_module_inside_a_layer_does_not_divide_it() -> None:
    modules = ["model.embed", "model.layers.0.mlp", "model.rotary", "model.layers.0.mlp", "model.rotary", "lm_head"]
    allocations = [Allocation(512, "aten.mm.default", modules[3], (1,), 3, 4)]
    timeline = timeline_of([("aten.mm.default", module) for module in modules], allocations)
    assert layer_at_the_peak(timeline) == range(1, 4)


def test_outside_the_layers_the_span_ends_where_they_begin() -> None:
    modules = ["model.embed", "model.layers.0.mlp", "model.norm", "lm_head"]
    timeline = timeline_of(
        [("aten.mm.default", module) for module in modules],
        [Allocation(512, "aten.mm.default", "lm_head", (1,), 3, 4)],
    )
    assert layer_at_the_peak(timeline) == range(2, 4)


def test_views_have_no_column() -> None:
    timeline = timeline_of([("aten.view.default", "m")] * 5, [Allocation(512, "aten.mm.default", "m", (1,), 1, 3)])
    assert changing_operations(timeline, range(5)) == [0, 1, 3]
