"""The picture of a plan: bars that can be read without colour."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

import brim
from brim.cli.show.drawing.svg import text_width
from brim.cli.show.palette import ITEM_COLOURS, item_colour, item_keys
from brim.cli.show.picture import WIDTH, plan_svg
from brim.records.plan import MemoryPlan

SVG = "{http://www.w3.org/2000/svg}"
PLANS = {
    "fits": lambda: brim.plan("llama-3.1-8b", gpu="l40s"),
    "many items": lambda: brim.plan("qwen2.5-vl-7b", gpu="rtx-4090", draft="qwen2.5-0.5b", reserve=100 << 20),
    "a little short": lambda: brim.plan("llama-3.1-8b", gpu="17GiB"),
    "far too large": lambda: brim.plan("deepseek-v3", gpu="t4"),
    "several ranks": lambda: brim.plan("qwen3.5-27b", gpu="h100", tp=2),
}


def group(root: ElementTree.Element, name: str) -> ElementTree.Element:
    return next(found for found in root.iter(f"{SVG}g") if found.get("id") == name)


@pytest.mark.parametrize("kind", PLANS)
def test_every_item_has_its_letter_at_its_place(kind: str) -> None:
    plan: MemoryPlan = PLANS[kind]()
    shown = [item for item in plan.items if item.bytes > 0]
    keys = item_keys(item.name for item in plan.items)
    root = ElementTree.fromstring(plan_svg(plan))
    drawn = [box for box in group(root, "bar").iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None]
    scale = (WIDTH - 48) / (plan.device.total_bytes + plan.shortfall_bytes)
    assert [float(box.attrib["width"]) for box in drawn] == pytest.approx(
        [item.bytes * scale for item in shown], abs=0.1
    )
    letters = [(node.text or "").split()[0] for node in group(root, "bar").iter(f"{SVG}text")]
    assert {keys[item.name] for item in shown} <= set(letters)
    assert [node.text for node in group(root, "ledger").iter(f"{SVG}text")][1::5] == [item.name for item in shown]


@pytest.mark.parametrize("kind", PLANS)
def test_text_stays_inside(kind: str) -> None:
    root = ElementTree.fromstring(plan_svg(PLANS[kind]()))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for node in root.iter(f"{SVG}text"):
        words = "".join(node.itertext())
        long = text_width(words, float(node.attrib["font-size"]))
        shift = {"start": 0.0, "middle": -long / 2, "end": -long}[node.attrib["text-anchor"]]
        left = float(node.attrib["x"]) + shift
        assert left >= -0.1, words
        assert left + long <= width + 0.1, words
        assert 0 < float(node.attrib["y"]) <= height


def test_letters_above_the_bar_do_not_touch() -> None:
    root = ElementTree.fromstring(plan_svg(PLANS["far too large"]()))
    above = [
        float(node.attrib["x"])
        for node in group(root, "bar").iter(f"{SVG}text")
        if len(node.text or "") == 1 and node.text != "0" and float(node.attrib["y"]) < 130
    ]
    assert len(above) >= 4
    assert min(right - left for left, right in pairwise(above)) >= 15.9


def test_keys_are_letters_of_their_own() -> None:
    keys = item_keys([*ITEM_COLOURS, "workspace of rank 2", "0", "—"])
    assert len(set(keys.values())) == len(keys) == len(ITEM_COLOURS) + 3
    assert keys["kv"] == item_keys(["kv", "what"])["kv"] == "K"
    assert item_colour("no such item").startswith("#")
