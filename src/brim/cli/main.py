"""`brim`: the commands, and the one place where errors become exit codes.

0: done (a plan: it fits). 1: it does not fit. 2: bad input, said in one line on stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from brim.cli import bench, chat, fit, generate, gpus, models, plan, serve, top, trace, vllm
from brim.cli.neighbours import hold, leases
from brim.errors import BrimError, DoesNotFit, OutOfMemory
from brim.version import __version__

DOES_NOT_FIT = 1
BAD_INPUT = 2
INTERRUPTED = 130
COMMANDS = (plan, trace, fit, generate, chat, serve, top, bench, vllm, hold, leases, models, gpus)


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line that names the option and where to read on."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(BAD_INPUT)


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="brim", description="Memory for LLM serving, filled to the brim, never spilled.")
    parser.add_argument("--version", action="version", version=f"brim {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=OneLineParser)
    for command in COMMANDS:
        command.add_command(commands)
    return parser


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    options = make_parser().parse_args(arguments)
    try:
        code = options.run(options)
    except BrimError as error:
        print(f"brim {options.command}: {error}", file=sys.stderr)
        return DOES_NOT_FIT if isinstance(error, DoesNotFit | OutOfMemory) else BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    return int(code)


def main() -> None:
    """The command `brim`: the process ends with the exit code."""
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    main()
