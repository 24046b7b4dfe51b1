"""`brim gpus`: the catalogue of GPUs and how much of their memory processes can use."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from brim.cli.options import add_json
from brim.planning.devices import catalogue
from brim.planning.gpus.cards import ARCHITECTURES

if TYPE_CHECKING:
    from brim.cli.options import Commands


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "gpus", help="the GPUs known by name", description="The GPUs that `brim plan` knows by name."
    )
    parser.set_defaults(run=run)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    rows = [
        {
            "key": device.key,
            "name": device.name,
            "total_bytes": device.total_bytes,
            "usable_bytes": device.usable_bytes,
            "context_bytes": device.context_bytes,
            "vendor": str(ARCHITECTURES[device.generation].vendor),
            "generation": device.generation,
            "source": str(device.source),
        }
        for device in catalogue()
    ]
    if options.as_json:
        print(json.dumps({"gpus": rows}, indent=2))
    else:
        from brim.cli.show.render import show_gpus

        show_gpus(rows)
    return 0
