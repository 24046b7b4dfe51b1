"""Where a model comes from: a directory, a config.json, the catalogue, or the Hugging Face hub.

In: what the user wrote. Out: a `ModelSpec`. Only JSON and safetensors headers are read: remote code is never run,
weights are never loaded. A hub id is looked for in the local cache first, then in the catalogue, then on the hub.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from brim.errors import SourceNotFound
from brim.model import hub
from brim.model.catalogue import entries, find_entry
from brim.model.checkpoint import stored_weights
from brim.model.config import read_config
from brim.model.jsonfile import read_object
from brim.records.model import ModelSpec

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}")
_SIDE_FILES = ("hf_quant_config.json", "preprocessor_config.json", "model.safetensors.index.json")


def load_model(source: str) -> ModelSpec:
    """A spec from whatever the user wrote."""
    if not source.strip():
        raise SourceNotFound("the model is empty; give a directory, a config.json, a catalogue name or a hub id")
    try:
        path = Path(source).expanduser()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):
        raise SourceNotFound(f"model '{source[:60]}' is neither a path nor a name") from None
    if exists:
        return _from_path(path)
    if source.startswith((".", "/", "~")) or source.endswith(".json"):
        raise SourceNotFound(f"{source[:200]}: no such file or directory; give a model directory or a config.json")
    if _HUB_ID.fullmatch(source):
        cached = hub.cached_snapshot(source)
        if cached is not None:
            return _from_directory(cached, source)
    entry = find_entry(source)
    if entry is not None:
        return _from_catalogue(entry.name)
    if _HUB_ID.fullmatch(source):
        return _from_directory(hub.download(source, _SIDE_FILES), source)
    raise SourceNotFound(_unknown(source))


def _unknown(source: str) -> str:
    import difflib  # only for the message

    near = difflib.get_close_matches(source.lower(), entries(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}? Or " if near else ""
    return (
        f"model '{source[:60]}' is not in the catalogue; {hint}give a directory, a config.json or an org/name "
        "of the hub (`brim models` lists the catalogue)"
    )


def _from_path(path: Path) -> ModelSpec:
    if path.is_dir():
        return _from_directory(path, path.resolve().name)
    if path.name == "config.json":
        return _from_directory(path.parent, path.resolve().parent.name or "model", config=path)
    return read_config(read_object(path), name=path.stem)


def _from_directory(directory: Path, name: str, config: Path | None = None) -> ModelSpec:
    config = config or directory / "config.json"
    if not config.exists():
        raise SourceNotFound(f"{directory}: no config.json in it; give a model directory")
    side = {one: directory / one for one in _SIDE_FILES}
    spec = read_config(
        read_object(config),
        name=name,
        quantisation=read_object(side["hf_quant_config.json"]) if side["hf_quant_config.json"].is_file() else None,
        processor=read_object(side["preprocessor_config.json"]) if side["preprocessor_config.json"].is_file() else None,
    )
    stored = stored_weights(directory, len(spec.layers))
    return spec if stored is None else replace(spec, files_bytes=stored.bytes, files_detail=stored.detail)


@cache
def _from_catalogue(name: str) -> ModelSpec:
    return read_config(entries()[name].config, name=name)
