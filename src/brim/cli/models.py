"""`brim models`: the built-in catalogue, and the families that configs are read as."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from brim.cli.options import add_json
from brim.model.catalogue import entries
from brim.model.config import MULTIMODAL, TEXT
from brim.model.weights import weight_bytes
from brim.trace.loading import load_model

if TYPE_CHECKING:
    from brim.cli.options import Commands


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "models", help="the models known by name", description="The models that `brim plan` knows by name."
    )
    parser.set_defaults(run=run)
    parser.add_argument("--families", action="store_true", help="list the supported model_types instead")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if options.families:
        return _families(options.as_json)
    rows = []
    for entry in entries().values():
        spec = load_model(entry.name)
        rows.append(
            {
                "name": entry.name,
                "hub_id": entry.hub_id,
                "family": spec.family,
                "parameters": spec.parameters,
                "weights_bytes": weight_bytes(spec).total_bytes,
                "max_positions": spec.max_positions,
            }
        )
    if options.as_json:
        print(json.dumps({"models": rows}, indent=2))
    else:
        from brim.cli.show.render import show_models

        show_models(rows)
    return 0


def _families(as_json: bool) -> int:
    text, multimodal = sorted(TEXT), sorted(MULTIMODAL)
    if as_json:
        print(json.dumps({"text": text, "multimodal": multimodal}, indent=2))
    else:
        print("text:       " + ", ".join(text))
        print("multimodal: " + ", ".join(multimodal))
    return 0
