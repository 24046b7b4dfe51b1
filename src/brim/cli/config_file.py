"""Options of a command from a file: `--config FILE`, TOML or YAML, and `--print-config`, which writes one.

In: a file whose keys are long options without their dashes (`max-len` or `max_len`), and a parser. Out: words of a
command line, which that parser reads like any others, so that an option is declared once. What is wrong is said with
the file, the line and the key. Not known: what values mean beyond their types; whoever uses an option says that.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from brim.errors import InvalidRequest
from brim.suggest import near, shown

_NOT_KEYS = ("help", "config", "print_config")
_SECRETS = ("api_key",)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A key of a file."""

    key: str
    value: Any
    where: str  # the file and the line


def add_config(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="options from a file, TOML or YAML, whose keys are their names without dashes; flags override it",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print these options as such a file, without keys of clients, and end",
    )


def config_words(file: Path, parser: ArgumentParser, given: Collection[str]) -> list[str]:
    """The words that a file stands for; none for options that are written already (`given`, by their dest)."""
    words: list[str] = []
    seen: dict[str, ConfigEntry] = {}
    for entry in _read(file):
        action = _action(entry, parser)
        first = seen.setdefault(action.dest, entry)
        if first is not entry:
            raise InvalidRequest(f"{entry.where}: '{entry.key}' is '{first.key}' of {first.where} again; keep one")
        found = _words(entry, action)
        if action.dest not in given:
            words = [*words, *found] if action.option_strings else [*found, *words]
    return words


def written_options(parser: ArgumentParser, words: Sequence[str]) -> set[str]:
    """The dests of options that a command line has, by a parser that is used for this alone: its defaults go."""
    for action in parser._actions:
        action.default = SUPPRESS
    parser._defaults.clear()
    return set(vars(parser.parse_known_args(list(words))[0]))


def as_config(parser: ArgumentParser, options: argparse.Namespace) -> str:
    """The options as a file in TOML; what is neither set nor has a default is left out."""
    lines = []
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        if action.help == SUPPRESS or action.dest in _NOT_KEYS or value is None or value is False or value == []:
            continue
        if action.dest in _SECRETS:
            lines.append(f"# {_key(action)}: not shown; api-key-file names a file of keys")
        else:
            lines.append(f"{_key(action)} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _key(action: argparse.Action) -> str:
    return next((name[2:] for name in action.option_strings if name.startswith("--")), action.dest)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value if isinstance(value, bool | int | float) else str(value), ensure_ascii=False)


def _read(file: Path) -> Iterator[ConfigEntry]:
    readers = {".toml": _read_toml, ".yaml": _read_yaml, ".yml": _read_yaml}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise InvalidRequest(f"config '{shown(str(file))}' is neither TOML nor YAML; name it .toml, .yaml or .yml")
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"config '{shown(str(file))}' cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"config '{shown(str(file))}' is not UTF-8; save it as that") from None
    return reader(file, text)


def _read_toml(file: Path, text: str) -> Iterator[ConfigEntry]:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"config {file}: it is no TOML: {error}") from None
    for key, value in found.items():
        begins = re.compile(rf"\s*(?:\[\s*)?[\"']?{re.escape(key)}[\"']?\s*[=.\]]")
        line = next((number for number, one in enumerate(text.splitlines(), 1) if begins.match(one)), None)
        yield ConfigEntry(key, value, f"{file}:{line}" if line else str(file))


def _read_yaml(file: Path, text: str) -> Iterator[ConfigEntry]:
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise InvalidRequest(f"config {file}: YAML needs PyYAML: pip install pyyaml; or write TOML") from None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        pairs = root.value if isinstance(root, yaml.MappingNode) else None
        if root is not None and pairs is None:
            raise InvalidRequest(f"config {file}: it is no mapping; write lines such as 'max-len: 8k'")
        entries = [
            ConfigEntry(str(key.value), loader.construct_object(value, deep=True), f"{file}:{key.start_mark.line + 1}")
            for key, value in pairs or ()
        ]
    except yaml.YAMLError as error:
        raise InvalidRequest(f"config {file}: it is no YAML: {' '.join(str(error).split())}") from None
    yield from entries


def _action(entry: ConfigEntry, parser: ArgumentParser) -> argparse.Action:
    """The option that a key names."""
    known = {
        name.removeprefix("--"): action
        for action in parser._actions
        if action.dest not in _NOT_KEYS
        for name in (action.option_strings or (action.dest,))
        if name.startswith("--") or not action.option_strings
    }
    found = known.get(entry.key.replace("_", "-"))
    if found is None:
        meant = near(entry.key, [name for name, action in known.items() if action.help != SUPPRESS])
        hint = f"did you mean {meant}?" if meant else f"keys are the long options of {parser.prog}, without dashes"
        raise InvalidRequest(f"{entry.where}: key '{shown(entry.key)}' is not known; {hint}")
    return found


def _words(entry: ConfigEntry, action: argparse.Action) -> list[str]:
    """The option as it would be written."""
    name = f"--{entry.key.replace('_', '-')}"
    if action.nargs == 0:
        if not isinstance(entry.value, bool):
            raise _wrong(entry, "true or false")
        negated = [f"--no-{name[2:]}"] if isinstance(action, argparse.BooleanOptionalAction) else []
        return [name] if entry.value else negated
    if isinstance(entry.value, list) and isinstance(action, argparse._AppendAction):
        return [f"{name}={_text(entry, one, action)}" for one in entry.value]
    text = _text(entry, entry.value, action)
    if action.option_strings:
        return [f"{name}={text}"]
    if text.startswith("-"):
        raise _wrong(entry, "a name or a path")
    return [text]


def _text(entry: ConfigEntry, value: Any, action: argparse.Action) -> str:
    """One value of an option, of its type."""
    kinds, wanted = {
        int: ((int,), "a whole number"),
        float: ((int, float), "a number"),
        Path: ((str,), "a path"),
    }.get(action.type, ((str, int, float), "text or a number"))  # type: ignore[call-overload]
    if isinstance(value, bool) or not isinstance(value, kinds):
        several = ", or a list of such" if isinstance(action, argparse._AppendAction) else ""
        raise _wrong(entry, wanted + several)
    if action.choices is not None and value not in action.choices:
        raise _wrong(entry, f"one of {', '.join(map(str, action.choices))}")
    return str(value)


def _wrong(entry: ConfigEntry, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"{entry.where}: '{entry.key}' is {_described(entry.value)}; it must be {wanted}")


def _described(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text '{shown(value)}'"
    if isinstance(value, int | float):
        return str(value)
    kinds = {list: "a list", dict: "a table", type(None): "empty"}
    return kinds.get(type(value), f"a {type(value).__name__}")
