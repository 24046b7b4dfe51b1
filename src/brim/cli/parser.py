"""The parser of every command: errors of one line, and help that ends with examples."""

from __future__ import annotations

import argparse
import sys
from argparse import SUPPRESS
from collections.abc import Sequence
from typing import Any, NoReturn

from brim.cli.examples import in_columns
from brim.suggest import near, shown

BAD_INPUT = 2


class ExamplesFormatter(argparse.HelpFormatter):
    """Wraps what is text, and leaves examples as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrapped = (part if "\n" in part else self._wrapped(part, width, indent) for part in text.split("\n\n"))
        return "\n\n".join(wrapped)

    def _wrapped(self, part: str, width: int, indent: str) -> str:
        return super()._fill_text(part, width, indent)


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line that names the option, what may have been meant, and where to read on."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"formatter_class": ExamplesFormatter, **given})

    def add_examples(self, examples: Sequence[tuple[str, str]]) -> None:
        """They end the help, after what its epilog says."""
        self.epilog = "\n\n".join(part for part in (self.epilog, "examples:\n" + in_columns(examples)) if part)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(BAD_INPUT)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Words that are left over: options that do not exist, or too many arguments."""
        word = next((one for one in unknown if one.startswith("-")), unknown[0])
        name = word.partition("=")[0]
        known = [option for action in self._actions for option in action.option_strings if action.help != SUPPRESS]
        what = f"option '{shown(name)}' is not known" if word.startswith("-") else f"'{shown(word)}' is one too many"
        meant = near(name.replace("_", "-"), known) if word.startswith("--") else ""
        self.error(f"{what}; did you mean {meant}?" if meant else what)
