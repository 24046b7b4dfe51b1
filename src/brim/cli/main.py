"""`brim`: the commands, and the one place where errors become exit codes.

0: done (a plan: it fits). 1: it does not fit. 2: bad input, said in one line on stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from brim.errors import BrimError, DoesNotFit, OutOfMemory
from brim.version import __version__

DOES_NOT_FIT = 1
BAD_INPUT = 2
INTERRUPTED = 130
COMMANDS = {  # in the order of --help; the module of each adds its options and runs it
    "plan": "brim.cli.plan",
    "trace": "brim.cli.trace",
    "fit": "brim.cli.fit",
    "generate": "brim.cli.generate",
    "chat": "brim.cli.chat",
    "serve": "brim.cli.serve",
    "top": "brim.cli.top",
    "bench": "brim.cli.bench",
    "vllm": "brim.cli.vllm",
    "hold": "brim.cli.neighbours.hold",
    "leases": "brim.cli.neighbours.leases",
    "models": "brim.cli.models",
    "gpus": "brim.cli.gpus",
}


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line that names the option and where to read on."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(BAD_INPUT)


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, or of one: then the modules of the others are not imported."""
    parser = OneLineParser(prog="brim", description="Memory for LLM serving, filled to the brim, never spilled.")
    parser.add_argument("--version", action="version", version=f"brim {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=OneLineParser)
    for name in COMMANDS if only is None else (only,):
        import_module(COMMANDS[name]).add_command(commands)
    return parser


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    options = make_parser(words[0] if words and words[0] in COMMANDS else None).parse_args(words)
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
