"""Folders of models with random weights: a config.json alone, from which vLLM starts with `load_format="dummy"`.

In: a folder or file with a config, or a name of Brim's catalogue. Out: its config, cut or without its towers where
asked, and a folder that has it.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

LAYER_FIELDS = ("layer_types", "layers_block_type", "mlp_layer_types", "hybrid_override_pattern")  # one entry a layer
COUNT_FIELDS = ("num_hidden_layers", "max_window_layers")


def read_config(source: str) -> dict[str, Any]:
    """The config of a folder, of a file, or the dimensions that Brim's catalogue has."""
    path = Path(source)
    file = path / "config.json" if path.is_dir() else path
    if file.is_file():
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found
    from brim.model.source import load_config

    return dict(load_config(source)[1])


def dummy_config(source: str, *, architecture: str = "", layers: int | None = None) -> dict[str, Any]:
    """A config that can be started without code or weights of its own; an architecture starts the decoder alone."""
    config = read_config(source)
    if architecture:
        config = {**config.get("text_config", config), "architectures": [architecture]}
    config.pop("auto_map", None)  # code that is not there
    if layers is not None:
        for part in (config, config.get("text_config", {})):
            part.update({name: min(part[name], layers) for name in COUNT_FIELDS if part.get(name) is not None})
            part.update({name: part[name][:layers] for name in LAYER_FIELDS if part.get(name)})
    return config


def own_folder(config: dict[str, Any]) -> Path:
    """The same for the same config, in every run: vLLM's compile cache and stored fits know a model by its folder."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return write_folder(config, Path(tempfile.gettempdir()) / "brim-dummy-models" / digest[:16])


def write_folder(config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder
