"""The picture of a trace as a reader's renderer sees it."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from brim.cli.show.drawing.svg import text_width
from brim.cli.show.timeline import WIDTH, timeline_svg
from brim.records.trace import Allocation, Timeline
from brim.units import format_bytes, parse_bytes
from tests.unit.cli.show.drawing.steps import decoder, timeline_of, trace_of

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert("&")</script>\x00\x1b ]]> ' + "very_long_name" * 20
STEPS = {
    "usual": decoder(),
    "one layer": decoder(layers=1),
    "many layers": decoder(layers=150),
    "no layers": decoder(layers=0),
    "one operation": timeline_of([("aten.mm.default", "")], [Allocation(512, "aten.mm.default", "", (), 0, 1)]),
    "huge": timeline_of(
        [("aten.mm.default", "model.layers.0.mlp")] * 2,
        [Allocation(1 << 45, "aten.mm.default", "model.layers.0.mlp", (1 << 44,), 0, 2)],
    ),
    "many owners": decoder(modules=[f"block_{number}.some_long_module_name.projection" for number in range(60)]),
    "hostile": decoder(modules=[HOSTILE, f"mlp.{HOSTILE}", "self_attn"]),
}


def drawn(timeline: Timeline, name: str = "a model") -> ElementTree.Element:
    return ElementTree.fromstring(timeline_svg(trace_of(timeline, name)))


def panel(root: ElementTree.Element, name: str) -> ElementTree.Element:
    return next(group for group in root.iter(f"{SVG}g") if group.get("id") == name)


@pytest.mark.parametrize("kind", STEPS)
def test_text_and_shapes_stay_inside_the_picture(kind: str) -> None:
    root = drawn(STEPS[kind], HOSTILE if kind == "hostile" else "a model")
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert width == WIDTH
    for node in root.iter(f"{SVG}text"):
        for x, y in corners(node):
            assert 0 <= x <= width, node.text
            assert 0 <= y <= height, node.text
    for box in root.iter(f"{SVG}rect"):
        left, top = float(box.get("x", 0)), float(box.get("y", 0))
        assert min(left, top) >= 0
        assert left + float(box.attrib["width"]) <= width + 0.1
        assert top + float(box.attrib["height"]) <= height + 0.1


def corners(node: ElementTree.Element) -> list[tuple[float, float]]:
    """The ends of a text's baseline, rotated as the text is."""
    x, y, size = (float(node.attrib[name]) for name in ("x", "y", "font-size"))
    long = text_width(node.text or "", size)
    start = {"start": 0.0, "middle": -long / 2, "end": -long}[node.attrib["text-anchor"]]
    turn = re.match(r"rotate\((-?\d+)", node.get("transform", "rotate(0"))
    assert turn is not None
    angle = math.radians(int(turn[1]))
    return [(x + end * math.cos(angle), y + end * math.sin(angle)) for end in (start, start + long)]


@pytest.mark.parametrize("kind", STEPS)
def test_both_legends_add_up_to_the_peak(kind: str) -> None:
    timeline = STEPS[kind]
    peak = timeline.operations[timeline.peak_at].live_bytes
    root = drawn(timeline)
    for name in ("step", "layer"):
        titles = [title.text or "" for title in panel(root, name).iter(f"{SVG}title")]
        sizes = [
            parse_bytes(found[1].replace(",", "")) for title in titles if (found := re.search(r": ([^:]+) at", title))
        ]
        assert sum(sizes) == pytest.approx(peak, rel=0.02)
        assert format_bytes(peak) in [node.text for node in panel(root, name).iter(f"{SVG}text")]


def test_the_column_of_the_peak_is_as_high_as_its_bytes() -> None:
    timeline = decoder()
    root = drawn(timeline)
    areas = [
        path.attrib["d"] for path in panel(root, "layer").iter(f"{SVG}path") if path.find(f"{SVG}title") is not None
    ]
    tops = [min(float(y) for y in re.findall(r"V([\d.]+)", area)) for area in areas]
    axis = float(areas[0].split()[1].split("H")[0])
    heights = sorted(axis - top for top in tops)
    peak = timeline.operations[timeline.peak_at].live_bytes
    alive = [made.bytes for made in timeline.allocations if made.is_live_at(timeline.peak_at)]
    pixels_per_byte = heights[-1] / peak
    assert heights[0] == pytest.approx(min(alive) * pixels_per_byte, abs=0.2)


def test_nothing_that_some_renderer_lacks() -> None:
    found = timeline_svg(trace_of(STEPS["hostile"], HOSTILE))
    root = ElementTree.fromstring(found)
    assert {node.tag.removeprefix(SVG) for node in root.iter()} <= {"svg", "g", "title", "rect", "line", "path", "text"}
    assert not {"style", "class", "href"} & {name for node in root.iter() for name in node.attrib}
    assert root.get("font-family") == "sans-serif"
    assert "<script" not in found
    assert "url(" not in found


def test_the_layer_at_the_peak_is_named() -> None:
    words = [node.text or "" for node in drawn(decoder(layers=4)).iter(f"{SVG}text")]
    assert any("The layer at the peak: model.layers.1" in word for word in words)
    assert any("the same in 2 others" in word for word in words)
    assert "self_attn" in words


def test_a_picture_of_a_large_step_is_not_a_large_file() -> None:
    assert len(timeline_svg(trace_of(STEPS["many layers"]))) < 200_000
