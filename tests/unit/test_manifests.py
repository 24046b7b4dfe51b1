"""The manifests under `deploy/`: fields of the Kubernetes, KubeRay and Gateway APIs, and what Brim's own parts say.

Kubernetes' own kinds are held against its published schemas (`tests/data/kubernetes`), pods of a RayService too. Of
KubeRay, the Gateway API and its inference extension no schemas are kept: the tables below are written from their
references, for the fields used. A field that is not in them fails, so that a misspelt one does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml")

import yaml

from brim.cli.main import read_options

DEPLOY = Path(__file__).parents[2] / "deploy"
SCHEMAS = json.loads((Path(__file__).parents[1] / "data" / "kubernetes" / "schemas.json").read_text())

PROBE = {"httpGet": {"path": str, "port": str}, "periodSeconds": int, "failureThreshold": int}
AMOUNTS = {str: (str, int)}
CONTAINER = {
    "name": str,
    "image": str,
    "args?": [str],
    "env?": [{"name": str, "value?": str, "valueFrom?": {"secretKeyRef": {"name": str, "key": str}}}],
    "ports?": [{"name": str, "containerPort": int}],
    "resources": {"limits": AMOUNTS, "requests": AMOUNTS},
    "startupProbe?": PROBE,
    "readinessProbe?": PROBE,
    "livenessProbe?": PROBE,
    "volumeMounts?": [{"name": str, "mountPath": str}],
}
POD = {
    "metadata?": {"labels?": {str: str}, "annotations?": {str: str}},
    "spec": {
        "containers": [CONTAINER],
        "volumes?": [{"name": str, "hostPath": {"path": str, "type": str}}],
        "terminationGracePeriodSeconds?": int,
    },
}
OBJECT = {"apiVersion": str, "kind": str, "metadata": {"name": str, "labels?": {str: str}}}
KINDS: dict[tuple[str, str], dict[str, Any]] = {
    ("v1", "Secret"): {"type": str, "stringData": {str: str}},
    ("v1", "Service"): {
        "spec": {"selector": {str: str}, "ports": [{"name": str, "port": int, "targetPort": (str, int)}]}
    },
    ("apps/v1", "Deployment"): {"spec": {"replicas": int, "selector": {"matchLabels": {str: str}}, "template": POD}},
    ("inference.networking.k8s.io/v1", "InferencePool"): {
        "spec": {
            "selector": {"matchLabels": {str: str}},
            "targetPorts": [{"number": int}],
            "endpointPickerRef": {"name": str, "port": {"number": int}, "failureMode?": ("FailOpen", "FailClose")},
        }
    },
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): {
        "spec": {
            "parentRefs": [{"name": str}],
            "rules": [
                {
                    "matches": [{"path": {"type": ("PathPrefix", "Exact"), "value": str}}],
                    "backendRefs": [{"group": str, "kind": str, "name": str}],
                }
            ],
        }
    },
    ("ray.io/v1", "RayService"): {
        "spec": {
            "serveConfigV2": str,
            "rayClusterConfig": {
                "rayVersion": str,
                "gcsFaultToleranceOptions?": {"redisAddress": str},
                "headGroupSpec": {"rayStartParams": {str: str}, "template": POD},
                "workerGroupSpecs": [
                    {
                        "groupName": str,
                        "replicas": int,
                        "minReplicas": int,
                        "maxReplicas": int,
                        "rayStartParams": {str: str},
                        "template": POD,
                    }
                ],
            },
        }
    },
}


def problems(found: Any, wanted: Any, where: str) -> list[str]:
    if isinstance(wanted, tuple):
        kinds = tuple(one for one in wanted if isinstance(one, type))
        return [] if found in wanted or (kinds and isinstance(found, kinds)) else [f"{where} is {found!r}"]
    if isinstance(wanted, type):
        return [] if isinstance(found, wanted) else [f"{where} is {found!r}, not a {wanted.__name__}"]
    if isinstance(wanted, list):
        if not isinstance(found, list) or not found:
            return [f"{where} is no list of something"]
        return [one for number, each in enumerate(found) for one in problems(each, wanted[0], f"{where}[{number}]")]
    assert isinstance(wanted, dict)
    if not isinstance(found, dict):
        return [f"{where} is {found!r}, not an object"]
    if str in wanted:
        return [one for name, each in found.items() for one in problems(each, wanted[str], f"{where}.{name}")]
    known = {name.rstrip("?"): (name.endswith("?"), each) for name, each in wanted.items()}
    required = [name for name, (optional, _) in known.items() if not optional]
    lacking = [f"{where}.{name} is missing" for name in required if name not in found]
    unknown = [f"{where}.{name} is not known" for name in found if name not in known]
    inner = [one for name in found if name in known for one in problems(found[name], known[name][1], f"{where}.{name}")]
    return lacking + unknown + inner


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


@pytest.mark.parametrize("name", ["deployment.yaml", "inferencepool.yaml", "rayservice.yaml"])
def test_manifests_have_the_fields_of_their_kinds(name: str) -> None:
    for found in documents(name):
        wanted = OBJECT | KINDS[found["apiVersion"], found["kind"]]
        assert problems(found, wanted, found["kind"]) == []


def test_a_misspelt_field_is_found() -> None:
    (pool, _) = documents("inferencepool.yaml")
    pool["spec"]["targetPort"] = pool["spec"].pop("targetPorts")
    found = problems(pool, OBJECT | KINDS[pool["apiVersion"], pool["kind"]], "it")
    assert found == ["it.spec.targetPorts is missing", "it.spec.targetPort is not known"]


def published(kind: str, found: Any) -> list[str]:
    """What Kubernetes' schema of a kind has against it."""
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    schema = {"$ref": f"#/$defs/{SCHEMAS['kinds'][kind]}", "$defs": SCHEMAS["$defs"]}
    return [one.message for one in jsonschema_rs.validator_for(schema).iter_errors(found)]


def test_kubernetes_own_kinds_follow_its_schemas() -> None:
    found = documents("deployment.yaml")
    assert [one["kind"] for one in found] == ["Secret", "Deployment", "Service"]
    assert [published(one["kind"], one) for one in found] == [[], [], []]
    (service,) = documents("rayservice.yaml")
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert published("PodTemplateSpec", group["template"]) == []


def test_the_schemas_find_a_wrong_field_deep_inside() -> None:
    _, deployment, _ = documents("deployment.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["livenessProbe"]["periodSecond"] = container["livenessProbe"].pop("periodSeconds")
    container["ports"][0]["containerPort"] = "8000"
    assert len(published("Deployment", deployment)) == 2


def test_the_deployment_says_what_brim_serve_takes() -> None:
    _, deployment, service = documents("deployment.yaml")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    options = read_options(container["args"][1:])
    assert options.port == container["ports"][0]["containerPort"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > options.drain_seconds
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    assert {container[probe]["httpGet"]["path"] for probe in probes} == {"/health"}
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]


def test_the_pool_has_the_pods_of_the_deployment() -> None:
    _, deployment, _ = documents("deployment.yaml")
    pool, route = documents("inferencepool.yaml")
    assert pool["spec"]["selector"] == deployment["spec"]["selector"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert pool["spec"]["targetPorts"] == [{"number": container["ports"][0]["containerPort"]}]
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == pool["metadata"]["name"]
