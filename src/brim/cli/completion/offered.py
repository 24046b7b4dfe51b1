"""What can be offered after each word of a command line: the parsers of the commands as records.

Not known: names of a machine (its GPUs, models in its hub cache), and flags of vLLM after `brim vllm serve`.
"""

from __future__ import annotations

import argparse
import re
from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from brim.model.catalogue import entries
from brim.model.packaged import packaged_names
from brim.model.quantisers.quantisation import NAMED_FORMATS
from brim.planning.devices import catalogue
from brim.planning.engines import ENGINES

_PLAIN = re.compile(r"[\w./:+-]+")  # words that no shell changes


@dataclass(frozen=True, slots=True)
class OfferedValue:
    """What a value may be: one of some words, a file, or something else."""

    words: tuple[str, ...] = ()
    files: bool = False


@dataclass(frozen=True, slots=True)
class OfferedOption:
    names: tuple[str, ...]
    help: str
    value: OfferedValue | None  # None: it takes none
    repeatable: bool


@dataclass(frozen=True, slots=True)
class OfferedCommand:
    name: str
    help: str
    options: tuple[OfferedOption, ...]
    argument: OfferedValue | None  # what stands without a name, any number of times


def offered_commands(parsers: Mapping[str, argparse.ArgumentParser]) -> list[OfferedCommand]:
    """The commands in their order."""
    return [_command(name, parser) for name, parser in parsers.items()]


def _command(name: str, parser: argparse.ArgumentParser) -> OfferedCommand:
    shown = [action for action in parser._actions if action.help != SUPPRESS]
    options = tuple(
        OfferedOption(
            tuple(action.option_strings),
            _first_words(action.help or ""),
            None if action.nargs == 0 else _value(name, action),
            isinstance(action, argparse._AppendAction),
        )
        for action in shown
        if action.option_strings
    )
    arguments = [_value(name, action) for action in shown if not action.option_strings]
    return OfferedCommand(name, _first_words(parser.description or ""), options, next(iter(arguments), None))


def _value(command: str, action: argparse.Action) -> OfferedValue:
    if action.choices is not None:
        return OfferedValue(_plain(str(one) for one in action.choices))
    known = _KNOWN.get((command, action.dest), _KNOWN.get(("", action.dest)))
    if known is not None:
        return known()
    metavar = str(action.metavar or "")
    if action.type is Path or metavar.startswith("FILE") or action.nargs == argparse.REMAINDER:
        return OfferedValue(_plain(word for word in metavar.split("|")[1:] if word.islower()), files=True)
    return OfferedValue()


def _models() -> OfferedValue:
    names = [*packaged_names(), *entries(), *(entry.hub_id for entry in entries().values())]
    return OfferedValue(_plain(names), files=True)


_KNOWN: Mapping[tuple[str, str], Callable[[], OfferedValue]] = {
    ("", "model"): _models,
    ("", "draft"): _models,
    ("vllm", "words"): lambda: OfferedValue(("serve", *_models().words), files=True),
    ("bench", "model"): OfferedValue,  # a name that a server lists
    ("plan", "gpu"): lambda: OfferedValue(_plain(["auto", *(device.key for device in catalogue())])),
    ("plan", "engine"): lambda: OfferedValue(_plain(ENGINES)),
    ("plan", "weights"): lambda: OfferedValue(_plain(["bf16", "fp16", "fp32", *NAMED_FORMATS])),
}


def _plain(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if _PLAIN.fullmatch(word)))


def _first_words(text: str) -> str:
    """The first clause of a help, on one line."""
    first = re.split(r"[;(?]|\.\s|:\s", text.replace("%%", "%"), maxsplit=1)[0].rstrip(". ")
    return shorten(first, 80, placeholder="…")
