"""Every metric that the Grafana dashboard asks for is one that a server publishes, with the labels it is asked by."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.served import Served, served
from tests.integration.test_chat import engine_of

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "brim.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
OF_VLLM = {  # of its own /metrics, and not of Brim's server
    "vllm:num_preemptions_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
}
ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
_NAME = re.compile(r"\b((?:brim|vllm)[_:][a-z_]+)")
_GROUPED = re.compile(r"by \(([a-z, ]+)\) \((?:\w+\()?((?:brim|vllm)[_:][a-z_]+)")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(engine_of(copy=11, kv_tokens=512), threads=True, api_keys=("a-key",)) as found:
        assert found.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 3}).status_code == 200
        yield found


def published(server: Served) -> dict[str, set[str]]:
    """The labels of every metric; an empty set where it has no sample yet."""
    found: dict[str, set[str]] = {}
    with (
        server.client() as client,
        client.stream(
            "POST", "/v1/completions", json={"prompt": [5] * 9, "max_tokens": 300, "ignore_eos": True, "stream": True}
        ) as answer,
    ):
        next(answer.iter_lines())  # a request is inside
        text = server.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for ending in ENDINGS.get(family.type, ("",)):
            found[family.name + ending] = set()
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def inside_vllm() -> set[str]:
    """The gauges of Brim in vLLM's own /metrics; read from the source, since that module imports vLLM."""
    tree = ast.parse((ROOT / "src" / "brim" / "vllm" / "metrics.py").read_text(encoding="utf-8"))
    return {one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and str(one.value).startswith("brim:")}


def test_every_metric_of_the_dashboard_is_published(server: Served) -> None:
    known = published(server)
    used = {name for query in QUERIES for name in _NAME.findall(query)}
    assert len(used) > 30
    assert sorted(used - known.keys() - inside_vllm() - OF_VLLM) == []


def test_every_label_of_the_dashboard_is_published(server: Served) -> None:
    known = published(server)
    found = [one for query in QUERIES for one in _GROUPED.findall(query)]
    grouped = [(name, label) for labels, name in found for label in labels.split(", ")]
    assert {label for _, label in grouped} >= {"part", "state", "key", "status", "cause", "le"}
    for name, label in grouped:
        if label != "instance" and known.get(name):  # Prometheus adds that one
            assert label in known[name], name


def test_the_device_adds_up(server: Served) -> None:
    parts = {part["name"]: part["bytes"] for part in server.get("/v1/memory").json()["card"]["parts"]}
    families = text_string_to_metric_families(server.get("/metrics").text)
    samples = [one for family in families for one in family.samples]
    shown = {one.labels["part"]: one.value for one in samples if one.name == "brim_device_bytes"}
    assert shown.keys() == parts.keys()
    assert shown["weights"] == parts["weights"] > 0
