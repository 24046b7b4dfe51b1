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


_WORDS = "the most that the command will hold, such as 4GiB, and the command with its arguments"


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
    _add_options(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="SIZE -- COMMAND", help=_WORDS)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu",
        default="0",
        metavar="GPU",
        help="0 (the default), cuda:1, a UUID, or a budget on the CPU, cpu:lab:4GiB",
    )
    parser.add_argument("--role", metavar="NAME", help="what neighbours call it (the command's name)")


def run(options: argparse.Namespace) -> int:
    size_text, command = _read(options)
    program = shutil.which(command[0])
    if program is None:
        raise InvalidRequest(f"command '{shown(command[0])}' is not there or cannot be run")
    size = parse_bytes(size_text, "size")
    from brim.reserve.devices import find_leased
    from brim.reserve.hold import take

    role = _role_of(command[0]) if options.role is None else options.role
    lease = take(find_leased(options.gpu), size, role)
    for problem in lease.problems:
        print(f"note: {problem}", file=sys.stderr)
    try:
        _become(program, command, lease)
    except OSError as error:
        raise InvalidRequest(f"command '{shown(command[0])}' cannot be run ({error.strerror})") from None
    finally:
        lease.release()


def _role_of(program: str) -> str:
    """The command's name, for neighbours."""
    from brim.reserve.codec import LONGEST_ROLE
    from brim.reserve.hold import is_role

    name = Path(program).name
    if not is_role(name):
        raise InvalidRequest(
            f"command '{shown(name)}': its name is not 1 to {LONGEST_ROLE} printable characters, so that neighbours "
            "cannot call it by it; give --role NAME"
        )
    return name


def _read(options: argparse.Namespace) -> tuple[str, list[str]]:
    """The size and the command. Options may also stand between the two, before the dashes."""
    before, command = _divided(options.words)
    if not before or not command:
        missing = "command" if before else "size"
        raise InvalidRequest(f"{missing} is missing; write brim hold --gpu 0 4GiB -- command")
    late = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    _add_options(late)
    try:
        _, unknown = late.parse_known_args(before[1:], options)
    except argparse.ArgumentError as error:
        raise InvalidRequest(f"{error}") from None
    if unknown:
        raise InvalidRequest(f"'{shown(unknown[0])}' is no option of brim hold; the command comes after --")
    return before[0], command


def _divided(words: list[str]) -> tuple[list[str], list[str]]:
    """What is before the dashes, and the command. Without dashes, the command comes after the size."""
    at = words.index("--") if "--" in words else None
    return (words[:1], words[1:]) if at is None else (words[:at], words[at + 1 :])


def _become(program: str, command: list[str], lease: OwnLease) -> NoReturn:
    """Replace this program. The signals that Python ignores are given back first."""
    lease.keep_over_exec()
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, command)
