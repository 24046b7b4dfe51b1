"""A small Ray on this machine for the tests of `brim.ray`; all of them skip where Ray is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ray.cluster import OnRay, ray_running, serving

if find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]  # `make test-ray` installs it

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fits and leases of these tests alone, and what worker processes import."""
    before = dict(os.environ)
    folder = tmp_path_factory.mktemp("brim")
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ.update(
        BRIM_CACHE=str(folder / "cache"),
        BRIM_LEASES=str(folder / "leases"),
        PYTHONPATH=os.pathsep.join(filter(None, paths)),
        OMP_NUM_THREADS="1",
        RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",
        RAY_DEDUP_LOGS="0",
    )
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def on_ray(_own_folders: None) -> Iterator[OnRay]:
    """One Ray for all tests that need no other; each module deploys its own application."""
    with ray_running() as logs, serving(logs) as found:
        yield found
