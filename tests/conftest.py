"""What tests share: where the outside data is, and how to read it. Tests that need it skip where it is absent."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a worker for each core: more threads of torch only wait for each other

# `make test` draws the same examples every time; `make soak` draws others, and so finds what nobody has seen yet.
settings.register_profile("same examples", derandomize=True)
settings.register_profile("new examples", derandomize=False)
settings.load_profile(os.environ.get("BRIM_EXAMPLES", "same") + " examples")

SHARED = Path(__file__).parents[2] / "shared"
CONFIGS = SHARED / "configs"
TRUTH = SHARED / "truth"

needs_configs = pytest.mark.skipif(not CONFIGS.is_dir(), reason="../shared/configs is not here")
needs_truth = pytest.mark.skipif(not TRUTH.is_dir(), reason="../shared/truth is not here")


def shared_config_names() -> list[str]:
    """The folders of real configs; empty where they are not here."""
    return sorted(path.parent.name for path in CONFIGS.glob("*/config.json"))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def truth_rows() -> list[dict[str, Any]]:
    """The measured peaks; empty where they are not here."""
    path = TRUTH / "peaks_h200.json"
    return read_json(path) if path.is_file() else []


def needs_image_files() -> None:
    """Skip where the processor of the tiny model cannot be loaded: older transformers need torchvision for it."""
    from brim.engine.media.reading import load_processor
    from brim.errors import InvalidRequest
    from brim.model.packaged import packaged_folder

    try:
        load_processor(packaged_folder("brim-tiny-vl"))
    except InvalidRequest as missing:
        pytest.skip(str(missing))


def sampled(names: Iterable[str], sample: Collection[str]) -> list[Any]:
    """For `parametrize`: those of the sample always, the others in the soak."""
    return [name if name in sample else pytest.param(name, marks=pytest.mark.soak) for name in names]


# -- garbage: engines collect it when they are torn down, and to look through all that torch and transformers have
# imported, each time, would take half of these tests' time ----------------------------------------------------------

_MANY_MODULES = 20
_FROZEN_MODULES = pytest.StashKey[int]()


def pytest_configure() -> None:
    gc.disable()  # while the tests are imported


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What the tests before have imported is not looked through any more."""
    stash = item.config.stash
    if len(sys.modules) > stash.get(_FROZEN_MODULES, 0) + _MANY_MODULES:
        gc.collect()
        gc.freeze()
        stash[_FROZEN_MODULES] = len(sys.modules)


@pytest.fixture(scope="session", autouse=True)
def own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test shares a device with another run of the tests, or with what really runs on this machine."""
    before = os.environ.get("BRIM_LEASES")
    os.environ["BRIM_LEASES"] = str(tmp_path_factory.mktemp("leases"))
    yield
    os.environ.pop("BRIM_LEASES") if before is None else os.environ.update(BRIM_LEASES=before)
