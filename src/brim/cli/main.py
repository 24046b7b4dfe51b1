"""`brim`: the commands, and the one place where errors become exit codes.

0: done (a plan: it fits). 1: it does not fit. 2: bad input, said in one line on stderr, with what may have been meant.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from brim.cli.examples import EXAMPLES, OVERVIEW
from brim.cli.parser import BAD_INPUT, OneLineParser
from brim.cli.plain_output import write_plainly_where_needed
from brim.errors import BrimError, DoesNotFit, InvalidRequest, OutOfMemory
from brim.suggest import near, shown
from brim.version import __version__

DOES_NOT_FIT = 1
INTERRUPTED = 130
COMMANDS = {  # in the order of --help; the module of each adds its options and runs it
    "plan": "brim.cli.plan",
    "trace": "brim.cli.trace",
    "fit": "brim.cli.fit",
    "generate": "brim.cli.generate",
    "chat": "brim.cli.chat",
    "serve": "brim.cli.serve",
    "top": "brim.cli.top",
    "explain": "brim.cli.explain",
    "watch": "brim.cli.watch",
    "bench": "brim.cli.bench",
    "vllm": "brim.cli.vllm",
    "hold": "brim.cli.neighbours.hold",
    "leases": "brim.cli.neighbours.leases",
    "models": "brim.cli.models",
    "gpus": "brim.cli.gpus",
    "completion": "brim.cli.completion",
}


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands, or of one: then the modules of the others are not imported."""
    return _make_parsers(only)[0]


def command_parsers() -> Mapping[str, argparse.ArgumentParser]:
    """The parsers of all commands, by name."""
    return _make_parsers(None)[1]


def _make_parsers(only: str | None) -> tuple[OneLineParser, Mapping[str, OneLineParser]]:
    """The parser, and those of its commands."""
    parser = OneLineParser(
        prog="brim",
        description="Memory for LLM serving, filled to the brim, never spilled.",
    )
    parser.add_examples(OVERVIEW)
    parser.add_argument("--version", action="version", version=f"brim {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=OneLineParser)
    for name in COMMANDS if only is None else (only,):
        import_module(COMMANDS[name]).add_command(commands)
        commands.choices[name].add_examples(EXAMPLES[name])
    return parser, commands.choices


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        make_parser().print_help()
        return BAD_INPUT
    options = read_options(words)
    try:
        code = options.run(options)
    except BrimError as error:
        print(f"brim {options.command}: {error}", file=sys.stderr)
        return DOES_NOT_FIT if isinstance(error, DoesNotFit | OutOfMemory) else BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    return int(code)


def read_options(words: Sequence[str]) -> argparse.Namespace:
    """A command and its options; what is wrong is said on standard error, and ends the process."""
    parser, commands = _make_parsers(words[0] if words[0] in COMMANDS else None)
    if words[0] not in COMMANDS and not words[0].startswith("-"):
        meant = near(words[0], COMMANDS)
        hint = f"did you mean {meant}?" if meant else f"the commands are {', '.join(COMMANDS)}"
        parser.error(f"'{shown(words[0])}' is no command; {hint}")
    options, unknown = parser.parse_known_args(words)
    command = commands[options.command]
    if unknown:
        command.refuse(unknown)
    if getattr(options, "config", None) is not None:
        options = parser.parse_args([words[0], *_words_of_file(options.config, command, words[1:]), *words[1:]])
    if getattr(options, "print_config", False):
        from brim.cli.config_file import as_config

        print(as_config(command, options), end="")
        raise SystemExit(0)
    return options


def _words_of_file(file: Path, parser: OneLineParser, words: Sequence[str]) -> list[str]:
    """What a file adds to the words of its command."""
    from brim.cli.config_file import config_words, written_options

    _, commands = _make_parsers(parser.prog.split()[1])
    try:
        return config_words(file, parser, written_options(next(iter(commands.values())), words))
    except InvalidRequest as error:
        parser.error(str(error))


def main() -> None:
    """The command `brim`: the process ends with the exit code."""
    write_plainly_where_needed()
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    main()
