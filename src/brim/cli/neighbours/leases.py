"""`brim leases`: who holds what on the GPUs of this machine."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

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
    from brim.reserve.listing import listed_leases

    folder = leases_folder()
    keys = known_devices(folder) if options.gpu is None else (key_of(options.gpu),)
    found = [listed_leases(folder, key) for key in keys]
    for problem in (one for listing in found for one in (*listing.problems, *listing.unknown)):
        print(f"note: {problem}", file=sys.stderr)
    rows = [one.to_json() for listing in found for one in listing.leases]
    if options.as_json:
        print(json.dumps(rows, indent=2))
    else:
        from brim.cli.show.leases import show_leases

        show_leases(rows, sum(len(listing.unknown) for listing in found))
    return 0
