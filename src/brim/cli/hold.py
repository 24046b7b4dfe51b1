"""`brim hold`: run a command that holds memory of a GPU, and say so to its neighbours."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from brim.errors import InvalidRequest
from brim.suggest import shown
from brim.units import parse_bytes

if TYPE_CHECKING:
    from brim.cli.options import Commands
    from brim.reserve.hold import OwnLease


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "hold",
        help="run a command that holds memory of a GPU, and say so to its neighbours",
        description="Lease memory of a GPU (all that the command will take there, its context included) and become the "
        "command: it has this process' pid, signals and exit code, and the lease ends with it. Exit code 1: the size "
        "does not fit beside the other leases, and nothing was started.",
        usage="brim hold [--gpu GPU] [--role NAME] SIZE -- COMMAND …",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--gpu",
        default="0",
        metavar="GPU",
        help="0 (the default), cuda:1, a UUID, or a budget on the CPU, cpu:lab:4GiB",
    )
    parser.add_argument("--role", metavar="NAME", help="what neighbours call it (the command's name)")
    parser.add_argument("size", metavar="SIZE", help="the most that the command will hold, such as 4GiB")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command, after --")


def run(options: argparse.Namespace) -> int:
    command = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not command:
        raise InvalidRequest("command is missing; write brim hold --gpu 0 4GiB -- command")
    program = shutil.which(command[0])
    if program is None:
        raise InvalidRequest(f"command '{shown(command[0])}' is not there or cannot be run")
    size = parse_bytes(options.size, "size")
    from brim.reserve.devices import find_leased
    from brim.reserve.hold import take

    lease = take(find_leased(options.gpu), size, options.role or Path(command[0]).name)
    try:
        _become(program, command, lease)
    except OSError as error:
        raise InvalidRequest(f"command '{shown(command[0])}' cannot be run ({error.strerror})") from None
    finally:
        lease.release()


def _become(program: str, command: list[str], lease: OwnLease) -> NoReturn:
    """Replace this program. The signals that Python ignores are given back first."""
    lease.keep_over_exec()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, command)
