"""`brim leases`: who holds what on the GPUs of this machine."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from brim.cli.options import add_json
from brim.folders import leases_folder

if TYPE_CHECKING:
    from brim.cli.options import Commands


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "leases",
        help="who holds what on a GPU: leases, and what their processes really use",
        description="The leases of this user's processes: what each has promised, what it holds, and what its process "
        "really uses (by NVML; on the CPU, its resident memory). Leases of processes that have ended are removed.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("--gpu", metavar="GPU", help="of one device only: 0, a UUID, or cpu:NAME (all devices)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from brim.reserve.devices import key_of
    from brim.reserve.ledger import known_devices

    folder = leases_folder()
    keys = known_devices(folder) if options.gpu is None else (key_of(options.gpu),)
    rows = [row for key in keys for row in _rows(key)]
    if options.as_json:
        print(json.dumps(rows, indent=2))
    else:
        from brim.cli.show.leases import show_leases

        show_leases(rows)
    return 0


def _rows(key: str) -> list[dict[str, Any]]:
    from brim.reserve.listing import listed_leases

    found = listed_leases(leases_folder(), key)
    for problem in found.problems:
        print(f"note: {problem}", file=sys.stderr)
    return [one.to_json() for one in found.leases]
