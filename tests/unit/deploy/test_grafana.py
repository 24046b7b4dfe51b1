"""The dashboard has the fields that Grafana needs, and panels that do not overlap."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

DASHBOARD = json.loads((Path(__file__).parents[3] / "deploy" / "grafana" / "brim.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DRAWN = [panel for panel in PANELS if panel["type"] != "row"]
COLUMNS = 24


def test_it_can_be_imported() -> None:
    assert DASHBOARD["schemaVersion"] >= 39
    assert DASHBOARD["uid"] == "brim-serve"
    assert "id" not in DASHBOARD  # Grafana's own number, of another installation
    assert {"title", "tags", "time", "templating", "annotations", "refresh"} <= DASHBOARD.keys()


def test_the_source_and_the_instance_are_variables() -> None:
    source, instance = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert (instance["name"], instance["type"], instance["multi"]) == ("instance", "query", True)
    for part in (instance, *DRAWN, *(target for panel in DRAWN for target in panel["targets"])):
        assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for panel in DRAWN:
        for target in panel["targets"]:
            assert 'instance=~"$instance"' in target["expr"], panel["title"]


def test_panels_have_numbers_titles_and_queries_of_their_own() -> None:
    assert len(DRAWN) > 20
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in DRAWN:
        assert panel["title"]
        assert panel["type"] in ("timeseries", "stat", "heatmap")
        assert {"defaults", "overrides"} == panel["fieldConfig"].keys()
        letters = [target["refId"] for target in panel["targets"]]
        assert letters
        assert len(set(letters)) == len(letters)
        assert all(target["expr"].count("(") == target["expr"].count(")") for target in panel["targets"])


def test_panels_are_within_the_grid_and_apart() -> None:
    for panel in PANELS:
        place = panel["gridPos"]
        assert place.keys() == {"x", "y", "w", "h"}
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS
    for one, other in itertools.combinations(PANELS, 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def test_memory_is_stacked() -> None:
    by_title = {panel["title"]: panel for panel in DRAWN}
    device, pool = by_title["The device, part by part"], by_title["KV pool: held, cached, free"]
    assert device["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    assert device["fieldConfig"]["defaults"]["unit"] == "bytes"
    assert pool["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "percent"


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    apart_across = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    apart_down = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (apart_across or apart_down)
