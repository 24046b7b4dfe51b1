"""The Serve config files under `deploy/`: Ray's own schema reads them, and their arguments are the application's."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray.serve")
pytest.importorskip("yaml")

import yaml
from ray.serve.schema import ServeDeploySchema

from brim.ray.arguments import read_arguments

DEPLOY = Path(__file__).parents[2] / "deploy"


def configs() -> dict[str, dict]:
    service = yaml.safe_load((DEPLOY / "rayservice.yaml").read_text())
    return {
        "serve_config.yaml": yaml.safe_load((DEPLOY / "serve_config.yaml").read_text()),
        "rayservice.yaml": yaml.safe_load(service["spec"]["serveConfigV2"]),
    }


@pytest.mark.parametrize("name", ["serve_config.yaml", "rayservice.yaml"])
def test_ray_and_the_application_take_them(name: str) -> None:
    (application,) = ServeDeploySchema.model_validate(configs()[name]).applications
    assert application.import_path == "brim.ray:app"
    for model in read_arguments(application.args).all_models():
        assert model.serve_options().model == model.model
