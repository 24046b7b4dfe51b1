"""The schemas of the kinds that `deploy/` uses, out of the wheel of kubernetes-validate, for `tests/data/kubernetes`.

    pip download --no-deps kubernetes-validate
    python scripts/kubernetes_schemas.py kubernetes_validate-*.whl

Only what these kinds refer to is kept, and no descriptions.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

KINDS = {
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "Service": "io.k8s.api.core.v1.Service",
    "Secret": "io.k8s.api.core.v1.Secret",
    "PodTemplateSpec": "io.k8s.api.core.v1.PodTemplateSpec",
}
OUT = Path(__file__).parents[1] / "tests" / "data" / "kubernetes"


def main(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith("-local-strict/_definitions.json")]
        newest = max(names, key=lambda name: [int(one) for one in re.findall(r"\d+", name)])
        every = json.loads(archive.read(newest))["$defs"]
        licence = next(name for name in archive.namelist() if name.endswith("LICENSE"))
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "LICENSE").write_bytes(archive.read(licence))
    kept: dict[str, Any] = {}
    waiting = list(KINDS.values())
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept[name] = plain(every[name])
            waiting += re.findall(r"#/\$defs/([\w.]+)", json.dumps(kept[name]))
    version = newest.split("/")[-2].removesuffix("-local-strict")
    found = {
        "$comment": f"Kubernetes {version}: definitions of its OpenAPI document, as kubernetes-validate has them",
        "kinds": KINDS,
        "$defs": dict(sorted(kept.items())),
    }
    (OUT / "schemas.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{version}: {len(kept)} definitions")


def plain(schema: Any) -> Any:
    """Without descriptions; references point into one file."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if isinstance(schema, str):
        return schema.replace("/api/_definitions.json#", "#")
    if not isinstance(schema, dict):
        return schema
    return {
        name: plain(one)
        for name, one in schema.items()
        if not (name == "description" and isinstance(one, str)) and not name.startswith("x-kubernetes")
    }


if __name__ == "__main__":
    main(sys.argv[1])
