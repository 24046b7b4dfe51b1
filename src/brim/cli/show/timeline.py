"""The picture of a trace: live bytes of a step by part of the model, and of the layer at the peak by owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from string import ascii_uppercase

from brim.cli.show import palette
from brim.cli.show.drawing.areas import Chart, chart_of, draw_areas, draw_bytes_axis, draw_labels, draw_peak
from brim.cli.show.drawing.legend import draw_legend, legend_height
from brim.cli.show.drawing.owners import (
    ModelComponent,
    Owner,
    layer_number,
    layer_of,
    op_word,
    owner_of,
    part_of,
    within,
)
from brim.cli.show.drawing.stacks import Stack, changing_operations, largest, layer_at_the_peak, stacked
from brim.cli.show.drawing.strips import STRIP_HEIGHT, ColumnRun, draw_numbers, draw_rotated_names, draw_strip, runs
from brim.cli.show.drawing.svg import SOFT, Box, document, group, line, path, shortened, text
from brim.records.trace import Operation, Phase, Timeline, Trace
from brim.units import format_bytes

WIDTH = 1200
_LEFT, _CHART, _LEGEND, _RIGHT = 80, 700, 816, 1176
_NAMED_OWNERS = 10
_STEP_TOP, _STEP_HEIGHT, _LAYER_TOP, _LAYER_HEIGHT, _NAMES = 142, 210, 464, 330, 100
_STEP_ROW, _LAYER_ROW = 22, 34
_HUES: Mapping[ModelComponent, str] = {
    ModelComponent.INPUTS: palette.GREY,
    ModelComponent.RESIDUAL: palette.GREEN,
    ModelComponent.CACHE: palette.VIOLET,
    ModelComponent.NORM: palette.SAND,
    ModelComponent.ATTENTION: palette.BLUE,
    ModelComponent.RECURRENT: palette.SKY,
    ModelComponent.FEED_FORWARD: palette.ORANGE,
    ModelComponent.EXPERTS: palette.ROSE,
    ModelComponent.HEAD: palette.VERMILION,
    ModelComponent.OTHER: palette.GREY,
}


def timeline_svg(trace: Trace) -> str:
    """The timeline of a trace as an SVG document."""
    timeline = trace.timeline
    assert timeline is not None, "a picture needs a trace with its timeline"
    last, span = len(timeline.operations) - 1, layer_at_the_peak(timeline)
    layer = layer_of(timeline.operations[timeline.peak_at].module)
    step = _in_order(stacked(timeline, range(last + 1), lambda made: _part_owner(part_of(made, last)), _CHART))
    inside = largest(stacked(timeline, span, lambda made: owner_of(made, last, layer), _CHART), _NAMED_OWNERS)
    step_chart = chart_of(step, Box(_LEFT, _STEP_TOP, _CHART, _STEP_HEIGHT))
    below = STRIP_HEIGHT + _NAMES
    layer_height = max(_LAYER_HEIGHT, legend_height(inside, _LAYER_ROW) - below)
    layer_chart = chart_of(inside, Box(_LEFT, _LAYER_TOP, _CHART, layer_height))
    parts = [
        *_heading(trace),
        _zoom(step_chart, layer_chart, span),
        group("step", _step_panel(trace, timeline, step_chart)),
        group("layer", _layer_panel(timeline, layer_chart, span)),
    ]
    return document(WIDTH, _LAYER_TOP + layer_height + below + 20, f"{trace.model}: live bytes of a step", parts)


def _part_owner(part: ModelComponent) -> Owner:
    return Owner(str(part), part)


def _in_order(stack: Stack) -> Stack:
    """The bands in the order of the parts, whatever was allocated first."""
    order = list(ModelComponent)
    return replace(stack, bands=tuple(sorted(stack.bands, key=lambda band: order.index(band.owner.part))))


def _fills(stack: Stack) -> dict[Owner, str]:
    """A shade of its part's hue for every owner."""
    used: Counter[ModelComponent] = Counter()
    fills = {}
    for band in stack.bands:
        part = band.owner.part
        fills[band.owner] = palette.shade(_HUES[part], used[part])
        used[part] += 1
    return fills


def _heading(trace: Trace) -> list[str]:
    title = f"{trace.model}: {format_bytes(trace.peak_bytes)} at the peak of a step"
    return [
        text(24, 40, shortened(title, WIDTH - 48, 22), size=22, bold=True),
        text(24, 64, shortened(_call(trace), WIDTH - 48, 14), size=14, fill=SOFT),
    ]


def _call(trace: Trace) -> str:
    shape = trace.shape
    unit = {Phase.VISION: "patches or tiles", Phase.AUDIO: "frames"}.get(shape.phase, "tokens")
    context = f" after {shape.context:,}" if shape.context else ""
    call = f"{shape.phase} of {shape.batch:,} × {shape.tokens:,} {unit}{context}, {trace.attention} attention"
    return f"{call}; live bytes above the weights, traced on the meta device"


def _step_panel(trace: Trace, timeline: Timeline, chart: Chart) -> list[str]:
    stack, fills = chart.stack, _fills(chart.stack)
    layers = [layer_of(timeline.operations[index].module) for index in stack.operations]
    return [
        *_title(timeline, range(len(timeline.operations)), chart, "The whole step, by part of the model"),
        *draw_bytes_axis(chart),
        *draw_areas(chart, fills),
        *draw_labels(chart, fills, {band.owner: (band.owner.name,) for band in stack.bands}),
        _axis(chart),
        *draw_numbers(chart, runs([layer_number(layer) for layer in layers]), stack.peak),
        text(_LEFT - 8, chart.box.bottom + 17, "layer", size=11, anchor="end", fill=SOFT),
        *draw_peak(chart, _peak_words(trace, timeline)),
        text(_LEGEND, _STEP_TOP - 32, "At the peak", size=14, bold=True),
        *draw_legend(stack, fills, {}, Box(_LEGEND, _STEP_TOP - 14, _RIGHT - _LEGEND, 0), _STEP_ROW),
    ]


def _peak_words(trace: Trace, timeline: Timeline) -> str:
    layer = layer_of(trace.at_module)
    where = f"layer {layer_number(layer)}" if layer else trace.at_module or "the model"
    same = {layer_of(one.module) for one in timeline.operations if one.live_bytes == trace.peak_bytes} - {layer}
    also = f", the same in {len(same)} others" if same else ""
    return f"peak {format_bytes(trace.peak_bytes)} in {where}{also}"


def _layer_panel(timeline: Timeline, chart: Chart, span: range) -> list[str]:
    stack, fills = chart.stack, _fills(chart.stack)
    keys = {band.owner: ascii_uppercase[number] for number, band in enumerate(stack.by_size)}
    names = {owner: (f"{key}  {owner.name}", key) for owner, key in keys.items()}
    peak = timeline.operations[timeline.peak_at]
    layer = layer_of(peak.module)
    drawn = [timeline.operations[index] for index in stack.operations]
    strip, unnamed = draw_strip(chart, runs([_child(operation, layer) for operation in drawn]))
    inside = [within(operation.module, layer) for operation in drawn]
    deeper = [
        ColumnRun(run.name.split(".", 1)[1], run.start, run.end) for run in runs(inside) if layer and "." in run.name
    ]
    title = f"The layer at the peak: {layer}" if layer else "Outside the layers, at the peak"
    place = " · ".join(part for part in (within(peak.module, layer), op_word(peak.name)) if part)
    return [
        *_title(timeline, span, chart, f"{title}, by owner of the tensor"),
        *draw_bytes_axis(chart),
        *draw_areas(chart, fills),
        *draw_labels(chart, fills, names),
        _axis(chart),
        *strip,
        *draw_rotated_names(chart, [*unnamed, *deeper], chart.box.bottom + STRIP_HEIGHT + 10, _NAMES),
        *draw_peak(chart, f"{format_bytes(peak.live_bytes)} in {place}"),
        text(_LEGEND, _LAYER_TOP - 32, "At the peak", size=14, bold=True),
        *draw_legend(stack, fills, keys, Box(_LEGEND, _LAYER_TOP - 14, _RIGHT - _LEGEND, 0), _LAYER_ROW),
    ]


def _child(operation: Operation, layer: str) -> str:
    """The layer's own child that an operation runs in; outside the layers, the module."""
    inside = within(operation.module, layer)
    if not layer:
        return inside.rsplit(".", 1)[-1] or "model"
    return inside.split(".")[0] or ("residual" if op_word(operation.name) == "add" else "layer")


def _title(timeline: Timeline, span: range, chart: Chart, words: str) -> list[str]:
    columns, top = len(chart.stack.operations), chart.box.top
    changing = len(changing_operations(timeline, span))
    drawn = "" if changing == columns else f"; drawn are {columns:,}, of each stretch the one with the most live bytes"
    counted = f"{len(span):,} operations, of which {changing:,} allocate or free{drawn}"
    return [
        text(24, top - 32, shortened(words, _LEFT + _CHART - 24, 16), size=16, bold=True),
        text(24, top - 14, shortened(counted, _LEFT + _CHART - 24, 11), size=11, fill=SOFT),
    ]


def _axis(chart: Chart) -> str:
    return line(chart.box.left, chart.box.bottom, chart.box.right, chart.box.bottom, palette.INK)


def _zoom(step: Chart, layer: Chart, span: range) -> str:
    """A wedge from the layer's place in the step to its own chart."""
    left, right = step.x(step.stack.column_of(span.start)), step.x(step.stack.column_of(span.stop - 1) + 1)
    top, bottom = step.box.bottom + 4 + STRIP_HEIGHT, layer.box.top
    shape = f"M{left:.1f} {top}L{layer.box.left} {bottom}H{layer.box.right}L{max(right, left + 1):.1f} {top}Z"
    return path(shape, "#f4f4f4")
