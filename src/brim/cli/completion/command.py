"""`brim completion`: prints the script that a shell completes `brim` by."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from brim.cli.completion.bash import bash_script
from brim.cli.completion.fish import fish_script
from brim.cli.completion.offered import offered_commands
from brim.cli.completion.zsh import zsh_script
from brim.cli.options import add_json
from brim.errors import InvalidRequest

if TYPE_CHECKING:
    from brim.cli.options import Commands

_SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "completion",
        help="print a script that completes brim in bash, zsh or fish",
        description="Print a script that completes commands, options, their values, files, and the names of models and "
        "GPUs. It asks nothing while you type; print it again after an update.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("shell", nargs="?", choices=tuple(_SCRIPTS), help="bash, zsh or fish")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from brim.cli.main import command_parsers  # which imports the commands, this one among them

    offered = offered_commands(command_parsers())
    if options.as_json:
        print(json.dumps({"commands": [asdict(one) for one in offered]}, indent=2))
        return 0
    if options.shell is None:
        raise InvalidRequest(f"shell is not given; write one of {', '.join(_SCRIPTS)}")
    print(_SCRIPTS[options.shell](offered), end="")
    return 0
