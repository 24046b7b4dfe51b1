"""What tests share: where the outside data is, and how to read it. Tests that need it skip where it is absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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
