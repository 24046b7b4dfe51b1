"""A model's files on this machine: those of an id of the hub are in its cache, or are downloaded into it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from brim.engine.weights.files import weight_files
from brim.errors import InputError
from brim.model import hub
from brim.model.download import download_model
from brim.model.source import is_hub_id
from brim.records.progress import Told

Source = TypeVar("Source")


def on_this_machine(source: Source, load_format: str, told: Told) -> Source | Path:
    """What was given; the folder of a model that has to be loaded from the hub."""
    if load_format == "dummy" or not isinstance(source, str) or not is_hub_id(source):
        return source
    cached = hub.cached_snapshot(source)
    return cached if cached is not None and _is_whole(cached) else download_model(source, told)


def _is_whole(folder: Path) -> bool:
    """Weights come last, so they tell for all; `brim plan` fetches the config alone."""
    try:
        weight_files(folder)
    except InputError:
        return False
    return True
