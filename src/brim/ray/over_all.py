"""One answer of the answers of all replicas: health, metrics, the memory report and the list of models.

Pure functions of `Whole` answers. Replicas are in the order of their names, so that a reader sees the same one first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from brim.ray.wire import Whole
from brim.serve.problems import SERVER, Problem

_HEALTH_ORDER = ("ready", "degraded", "starting", "draining", "failed")


def in_order(found: Sequence[Whole]) -> list[Whole]:
    return sorted(found, key=lambda one: one.replica)


def health(found: Sequence[Whole]) -> tuple[int, dict[str, Any]]:
    """That of the replica that is best: one that serves is enough."""
    states = {one.replica: json.loads(one.body) for one in in_order(found)}
    if not states:
        return 503, {"status": "starting", "phase": "no replica is ready yet", "replicas": {}}
    best = min(states.values(), key=lambda one: _HEALTH_ORDER.index(one["status"]))
    status = 200 if best["status"] in ("ready", "degraded") else 503
    return status, {**best, "replicas": {name: one["status"] for name, one in states.items()}}


def load(found: Sequence[Whole]) -> dict[str, int]:
    """Requests under way at all of them."""
    return {"server_load": sum(json.loads(one.body)["server_load"] for one in found)}


def memory(found: Sequence[Whole], chosen: str | None = None) -> dict[str, Any]:
    """The report of one replica, as `brim serve` gives it, and in `replicas` that of each."""
    reports = {one.replica: json.loads(one.body) for one in in_order(found) if one.status == 200}
    refused = next((one for one in found if 400 <= one.status < 500), None)
    if refused is not None:  # a query that no replica takes
        said = json.loads(refused.body)["error"]
        raise Problem(refused.status, said["message"], kind=said["type"], param=said["param"], code=said["code"])
    if not reports:
        raise Problem(503, "no replica has a report yet; /health says when one is ready", kind=SERVER, retry_after=5)
    if chosen is not None and chosen not in reports:
        raise Problem(404, f"replica: there is no '{chosen:.60}'; there are {', '.join(reports)}", param="replica")
    name = chosen or next(iter(reports))
    return {
        **reports[name],
        "replica": name,
        "replicas": [
            {
                "name": one,
                "model": report["model"],
                "device_name": report["device_name"],
                "card": report["card"],
                "kv": report["kv"],
                "running": report["requests"]["running"],
                "waiting": report["requests"]["waiting"],
                "status": report["health"]["status"],
            }
            for one, report in reports.items()
        ],
    }


def models(found: Sequence[Whole]) -> dict[str, Any]:
    """Each model once."""
    listed = {model["id"]: model for one in in_order(found) for model in json.loads(one.body).get("data", ())}
    return {"object": "list", "data": list(listed.values())}


def metrics(found: Sequence[Whole]) -> bytes:
    """The samples of all, each with the name of its replica."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfReplicas(in_order(found)))
    return generate_latest(registry)


class _OfReplicas(Collector):
    def __init__(self, found: Sequence[Whole]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        families: dict[str, Metric] = {}
        for one in self._found:
            for family in text_string_to_metric_families(one.body.decode()):
                kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, "replica": one.replica}
                    kept.add_sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar)
        return list(families.values())
