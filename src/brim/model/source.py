"""Where a model comes from: a directory, a config.json, Brim itself, the catalogue, or the Hugging Face hub.

In: what the user wrote. Out: a `ModelSpec`. Only JSON and safetensors headers are read: remote code is never run,
weights are never loaded. A hub id is looked for in the local cache first, then in the catalogue, then on the hub, and
then among the siblings of the catalogue's models: the real config is better than a sibling's. A name without an
organisation is looked for among Brim's own models, in the catalogue, and among siblings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from brim.errors import SourceNotFound
from brim.model import hub
from brim.model.catalogue import CatalogueEntry, entries, find_entry
from brim.model.checkpoint import stored_weights
from brim.model.config import UnlistedReader, read_config
from brim.model.jsonfile import read_object
from brim.model.packaged import packaged_folder, packaged_names
from brim.model.siblings import find_sibling
from brim.records.model import ModelSpec
from brim.suggest import did_you_mean, shown, suggestions

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}")
_SIDE_FILES = ("hf_quant_config.json", "preprocessor_config.json", "model.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class _Located:
    """Where a model's config is: in a file, or in the catalogue. `warning`: why that is not exactly what was named."""

    name: str
    config: Path | None = None
    entry: CatalogueEntry | None = None
    warning: str | None = None


def load_model(source: str, *, unlisted: UnlistedReader | None = None) -> ModelSpec:
    """A spec from whatever the user wrote. `unlisted` reads configs of families that Brim has no reader for."""
    found = _locate(source)
    if found.entry is not None:
        spec = _from_catalogue(found.entry.name)
        if found.warning is None:
            return spec
        named = source if _HUB_ID.fullmatch(source) else spec.source
        return replace(spec, source=named, warnings=(found.warning, *spec.warnings))
    assert found.config is not None
    return replace(_from_file(found.config, found.name, unlisted), source=_loaded_by(source, found))


def _loaded_by(source: str, found: _Located) -> str:
    """What an engine loads a model by: its hub id, or the directory that its config is in."""
    if found.name == source:
        return source
    return str(Path(source).parent) if source.endswith(".json") else source


def load_config(source: str) -> tuple[str, dict[str, Any]]:
    """(name, config dict) from whatever the user wrote, for running the model's own code."""
    found = _locate(source)
    if found.entry is not None:
        return found.name, found.entry.config
    assert found.config is not None
    return found.name, read_object(found.config)


def _locate(source: str) -> _Located:
    if not source.strip():
        raise SourceNotFound("model is empty; give a directory, a config.json, a catalogue name or a hub id")
    try:
        path = Path(source).expanduser()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):
        raise SourceNotFound(f"model '{source[:60]}' is neither a path nor a name") from None
    if exists:
        return _in_directory(path, path.resolve().name) if path.is_dir() else _at_file(path)
    if source.startswith((".", "/", "~")) or source.endswith(".json"):
        raise SourceNotFound(f"{source[:200]}: no such file or directory; give a model directory or a config.json")
    if _HUB_ID.fullmatch(source):
        return _by_hub_id(source)
    return _by_name(source)


def is_hub_id(source: str) -> bool:
    """Whether this is written like org/name of the hub, and is no path of this machine."""
    return bool(_HUB_ID.fullmatch(source)) and not source.startswith(".") and not Path(source).exists()


def _by_hub_id(source: str) -> _Located:
    cached = hub.cached_snapshot(source)
    if cached is not None:
        return _in_directory(cached, source)
    entry = find_entry(source)
    if entry is not None:
        return _Located(entry.name, entry=entry)
    try:
        return _in_directory(hub.download(source, _SIDE_FILES), source)
    except SourceNotFound:
        sibling = find_sibling(source)
        if sibling is None:
            raise
        return _as_sibling(source, sibling)


def _by_name(source: str) -> _Located:
    own = packaged_folder(source)
    if own is not None:
        return _in_directory(own, source)
    entry = find_entry(source)
    if entry is not None:
        return _Located(entry.name, entry=entry)
    sibling = find_sibling(source)
    if sibling is not None:
        return _as_sibling(source, sibling)
    near = suggestions(source, (*entries(), *packaged_names()))
    raise SourceNotFound(
        f"model '{shown(source)}' is not in the catalogue; {did_you_mean(near)}give a directory, a config.json or an "
        "org/name of the hub (`brim models` lists the catalogue)"
    )


def _as_sibling(source: str, entry: CatalogueEntry) -> _Located:
    warning = (
        f"'{shown(source)}' is taken as {entry.name} of the catalogue ({entry.hub_id}): base and tuned models have the "
        "same layers, but context and vocabulary may differ; give the model's own config.json to be exact"
    )
    return _Located(entry.name, entry=entry, warning=warning)


def _in_directory(directory: Path, name: str) -> _Located:
    config = directory / "config.json"
    if not config.exists():
        raise SourceNotFound(f"{directory}: no config.json in it; give a model directory")
    return _Located(name, config)


def _at_file(path: Path) -> _Located:
    return _Located(path.resolve().parent.name or "model" if path.name == "config.json" else path.stem, path)


def _from_file(config: Path, name: str, unlisted: UnlistedReader | None) -> ModelSpec:
    """A spec from a config file; one called config.json has a model's other files beside it."""
    if config.name != "config.json":
        return read_config(read_object(config), name=name, unlisted=unlisted)
    spec = read_config(
        read_object(config),
        name=name,
        quantisation=_side_file(config, "hf_quant_config.json"),
        processor=_side_file(config, "preprocessor_config.json"),
        unlisted=unlisted,
    )
    stored = stored_weights(config.parent, len(spec.layers))
    return spec if stored is None else replace(spec, files_bytes=stored.bytes, files_detail=stored.detail)


def _side_file(config: Path, name: str) -> dict[str, Any] | None:
    path = config.with_name(name)
    return read_object(path) if path.is_file() else None


@cache
def _from_catalogue(name: str) -> ModelSpec:
    entry = entries()[name]
    return replace(read_config(entry.config, name=name), source=entry.hub_id)
