"""The flags of a `vllm serve` command, read without vLLM; only vLLM's own parser knows what they mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any


def is_written(flags: tuple[str, ...], words: Sequence[str]) -> bool:
    """Whether one of them is in the command or in its file; vLLM takes the beginning of a name too.

    Beginnings of one word are not looked at: `--device` begins `--device-ids` and others.
    """
    return any(flag.startswith(name) for name in written_flags(words) if "-" in name[2:] for flag in flags)


def written_flags(words: Sequence[str]) -> dict[str, str]:
    """Each flag with the word that follows it, its value if it has one; the command is after its file, as in vLLM."""
    file = next((value for flag, value in pairwise(words) if flag == "--config"), None)
    found = {} if file is None else dict(_flags_of_file(Path(file)))
    for word, following in pairwise([*words, ""]):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found[_with_dashes(name)] = value if equals else following
    return found


def _flags_of_file(file: Path) -> Iterator[tuple[str, str]]:
    """The flags that a file switches on; none where vLLM itself will say what is wrong with it."""
    import yaml

    try:
        flags: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return
    for name, value in flags.items() if isinstance(flags, dict) else ():
        if value is not False:
            yield _with_dashes(f"--{name}"), json.dumps(value) if isinstance(value, dict) else str(value)


def _with_dashes(name: str) -> str:
    """As vLLM's parser compares names: underscores count as dashes, but not in the fields of a dotted flag."""
    flag, dot, field = name.partition(".")
    return flag.replace("_", "-") + dot + field
